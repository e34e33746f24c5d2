/* MPI_Init_thread with the level that the argument names (0 single, 1 funneled, 2 serialized, 3 multiple): what is provided is
 * a level between the one asked for and the highest, MPI_Query_thread says the same, and messages flow. */
#include "check.h"

enum { SIZE = 100000 };

int main(int argc, char **argv) {
    static const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    int rank, ranks, provided, queried;
    int wanted = levels[argc > 1 ? atoi(argv[1]) % 4 : 0];
    MPI_Init_thread(&argc, &argv, wanted, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Query_thread(&queried);
    REQUIRE(provided >= wanted && queried == provided, "asked for level %d, got %d, then %d", wanted, provided, queried);
    unsigned char *out = memory(SIZE), *in = memory(SIZE);
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (int size = 0; size <= SIZE; size = size ? size * 10 : 1) {
        fill(out, (size_t)size, seed_of((uint64_t)rank, (uint64_t)size, 0, 0));
        MPI_Sendrecv(out, size, MPI_BYTE, right, 1, in, size, MPI_BYTE, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(in, (size_t)size, seed_of((uint64_t)left, (uint64_t)size, 0, 0), "ring");
    }
    free(out), free(in);
    if (rank == 0) printf("PASS levels\n");
    MPI_Finalize();
    return 0;
}
