/* A million small messages between two ranks that poll, half of them each way, checked one by one. It says how far it is:
   where other programs want the processors, an exchange may take as long as the scheduler likes. */
#include "check.h"

enum { EXCHANGES = 500000, SAY = 20000 };

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(ranks == 2, "two ranks, not %d", ranks);
    double begin = MPI_Wtime();
    for (uint64_t n = 0; n < EXCHANGES; n++) {
        if (rank == 0 && n % SAY == 0) {
            printf("%lu of %d\n", (unsigned long)n, EXCHANGES);
            fflush(stdout);
        }
        uint64_t out = mix(2 * n + (uint64_t)rank), in = 0;
        if (rank == 0) MPI_Send(&out, 8, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(&in, 8, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1) MPI_Send(&out, 8, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        REQUIRE(in == mix(2 * n + 1 - (uint64_t)rank), "exchange %lu brought the wrong 8 bytes", (unsigned long)n);
    }
    if (rank == 0) printf("messages %d seconds %.3f\n", 2 * EXCHANGES, MPI_Wtime() - begin);
    finish("million");
    return 0;
}
