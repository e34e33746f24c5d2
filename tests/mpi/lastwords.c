/* MPI_Finalize right after a send whose receive comes much later: what MPI_Send completed may not be lost by leaving.
 * All ranks but 0 send eager messages and leave at once; rank 0 computes for a while, outside of MPI, before it receives.
 * Two more of them go by MPI_Isend and MPI_Request_free, so that nothing but MPI_Finalize itself can wait for them. */
#include "check.h"

enum { MESSAGES = 40, MOST = 60000 };

static size_t size_at(int n) {
    static const size_t sizes[] = {0, 8, 1000, 4000, 200};
    return n >= MESSAGES - 2 ? MOST : sizes[n % 5];
}

static void leave(int rank) {
    static unsigned char buffers[MESSAGES][MOST];
    for (int n = 0; n < MESSAGES; n++) {
        fill(buffers[n], size_at(n), seed_of((uint64_t)rank, 0, 0, (uint64_t)n));
        if (n < MESSAGES - 2) {
            MPI_Send(buffers[n], (int)size_at(n), MPI_BYTE, 0, n, MPI_COMM_WORLD);
            continue;
        }
        MPI_Request request;
        MPI_Isend(buffers[n], (int)size_at(n), MPI_BYTE, 0, n, MPI_COMM_WORLD, &request);
        MPI_Request_free(&request);
    }
    MPI_Finalize();
}

static void receive_late(int ranks) {
    static unsigned char buffer[MOST];
    double begin = MPI_Wtime();
    while (MPI_Wtime() - begin < 0.3) continue;
    for (int n = 0; n < MESSAGES; n++)
        for (int from = ranks - 1; from > 0; from--) {
            MPI_Recv(buffer, MOST, MPI_BYTE, from, n, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            verify(buffer, size_at(n), seed_of((uint64_t)from, 0, 0, (uint64_t)n), "last words");
        }
    printf("PASS lastwords\n");
    MPI_Finalize();
}

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    if (rank == 0) receive_late(ranks);
    else leave(rank);
    return 0;
}
