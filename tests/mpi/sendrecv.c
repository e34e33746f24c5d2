/* Every pair of ranks, both directions at once, at every edge size; then the same with the sizes of the two directions different. */
#include "check.h"

static int rank, ranks;

static void exchange(int peer, int out_size, int in_size, int round, unsigned char *out, unsigned char *in) {
    fill(out, (size_t)out_size, seed_of((uint64_t)rank, (uint64_t)peer, (uint64_t)out_size, (uint64_t)round));
    memset(in, 0xa5, (size_t)in_size + 1);
    MPI_Status status;
    MPI_Sendrecv(out, out_size, MPI_BYTE, peer, round, in, in_size, MPI_BYTE, peer, round, MPI_COMM_WORLD, &status);
    int count;
    MPI_Get_count(&status, MPI_BYTE, &count);
    REQUIRE(count == in_size, "%d bytes came from %d, not %d", count, peer, in_size);
    verify(in, (size_t)in_size, seed_of((uint64_t)peer, (uint64_t)rank, (uint64_t)in_size, (uint64_t)round), "sendrecv");
    REQUIRE(in[in_size] == 0xa5, "the byte behind a receive of %d was written", in_size);
}

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    size_t most = (size_t)edge_sizes[EDGE_SIZES - 1];
    unsigned char *out = memory(most), *in = memory(most + 1);
    for (int step = 0; step < ranks; step++) {
        int peer = (2 * ranks + step - rank) % ranks;
        for (int i = 0; i < EDGE_SIZES; i++) {
            int other = edge_sizes[EDGE_SIZES - 1 - i];
            exchange(peer, edge_sizes[i], edge_sizes[i], 2 * i, out, in);
            if (peer != rank) exchange(peer, rank < peer ? edge_sizes[i] : other, rank < peer ? other : edge_sizes[i], 2 * i + 1, out, in);
        }
    }
    finish("sendrecv");
    return 0;
}
