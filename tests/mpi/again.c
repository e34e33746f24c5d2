/* The same megabyte goes there and back many times: what a transport keeps registered, it finds again. Every round carries other data. */
#include "check.h"

#include <sys/mman.h>

enum { ROUNDS = 500, SIZE = 1 << 20, EVERY = 50 };

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    /* Not of the heap, of which nothing is kept where Open MPI cannot see it shrink (docs/openmpi.md). */
    unsigned char *out = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *in = out + SIZE;
    REQUIRE(out != MAP_FAILED, "no memory");
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t seed = seed_of(0, 1, 2, (uint64_t)(round / EVERY));
        if (round % EVERY == 0) {
            fill(out, SIZE, seed);
            memset(in, 0, SIZE);
        }
        out[round] ^= 0x5a;
        if (rank == 0) MPI_Send(out, SIZE, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(in, SIZE, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1) MPI_Send(out, SIZE, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        REQUIRE(in[round] == out[round], "round %d: its byte is 0x%02x, not 0x%02x", round, in[round], out[round]);
        if (round % EVERY == 0) {
            in[round] ^= 0x5a;
            verify(in, SIZE, seed, "a round");
        }
    }
    finish("again");
    return 0;
}
