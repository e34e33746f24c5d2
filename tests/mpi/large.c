/* Large messages to 64 MiB, one at a time and several at once in both directions, from unaligned addresses. */
#include "check.h"

enum { LANES = 3 };
static const size_t sizes[] = {1 << 20, (4 << 20) + 1, (16 << 20) - 3, 64 << 20};

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i];
        int lanes = size > 20u << 20 ? 1 : LANES;
        unsigned char *out[LANES], *in[LANES];
        MPI_Request requests[2 * LANES];
        for (int lane = 0; lane < lanes; lane++) {
            in[lane] = memory(size + 64);
            out[lane] = memory(size + 64);
            fill(out[lane] + lane, size, seed_of((uint64_t)rank, (uint64_t)right, size, (uint64_t)lane));
            memset(in[lane], 0xa5, size + 64);
            MPI_Irecv(in[lane] + 5 * lane, (int)size, MPI_BYTE, left, lane, MPI_COMM_WORLD, &requests[lane]);
        }
        for (int lane = 0; lane < lanes; lane++)
            MPI_Isend(out[lane] + lane, (int)size, MPI_BYTE, right, lane, MPI_COMM_WORLD, &requests[lanes + lane]);
        MPI_Waitall(2 * lanes, requests, MPI_STATUSES_IGNORE);
        for (int lane = 0; lane < lanes; lane++) {
            verify(in[lane] + 5 * lane, size, seed_of((uint64_t)left, (uint64_t)rank, size, (uint64_t)lane), "large");
            REQUIRE(in[lane][5 * lane + size] == 0xa5, "the byte behind a receive of %zu was written", size);
            free(in[lane]), free(out[lane]);
        }
    }
    finish("large");
    return 0;
}
