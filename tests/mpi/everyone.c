/* All ranks to all ranks at once, from the first message on: a storm of connections. Few rounds, so that many ranks can share few
 * cores; a small and a large message to everybody in each. */
#include "check.h"

enum { ROUNDS = 3, SMALL = 8, LARGE = RENDEZVOUS };

static int rank, ranks;

static void round_of(int number, int size) {
    size_t each = (size_t)size, count = (size_t)ranks;
    unsigned char *out = memory(each * count), *in = memory(each * count);
    MPI_Request *requests = memory(2 * count * sizeof *requests);
    for (int peer = 0; peer < ranks; peer++) {
        fill(out + each * (size_t)peer, each, seed_of((uint64_t)rank, (uint64_t)peer, (uint64_t)size, (uint64_t)number));
        MPI_Irecv(in + each * (size_t)peer, size, MPI_BYTE, peer, number, MPI_COMM_WORLD, &requests[peer]);
    }
    /* Everybody begins with another one, and the first round with all at once. */
    for (int i = 0; i < ranks; i++) {
        int peer = (rank + i) % ranks;
        MPI_Isend(out + each * (size_t)peer, size, MPI_BYTE, peer, number, MPI_COMM_WORLD, &requests[ranks + i]);
    }
    MPI_Waitall(2 * ranks, requests, MPI_STATUSES_IGNORE);
    for (int peer = 0; peer < ranks; peer++)
        verify(in + each * (size_t)peer, each, seed_of((uint64_t)peer, (uint64_t)rank, (uint64_t)size, (uint64_t)number), "everyone");
    free(requests);
    free(in);
    free(out);
}

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    for (int i = 0; i < ROUNDS; i++) {
        round_of(2 * i, SMALL);
        round_of(2 * i + 1, LARGE);
    }
    finish("everyone");
    return 0;
}
