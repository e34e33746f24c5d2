/* More rendezvous wait at a time than the device has registrations: rank 0 begins them all before rank 1 receives the first. The
 * messages leave the same memory, which MPI allows. */
#include "check.h"

enum { COUNT = 70000, SIZE = 16384, EVERY = 1000, BEGIN = 1 };

int main(int argc, char **argv) {
    int rank, size;
    start(&argc, &argv, &rank, &size);
    int length = argc > 1 ? atoi(argv[1]) : SIZE;
    char *buffer = memory((size_t)length);
    MPI_Request *requests = memory(COUNT * sizeof *requests);
    if (rank == 0) {
        fill(buffer, (size_t)length, seed_of(0, 1, 0, 0));
        for (int i = 0; i < COUNT; i++) MPI_Isend(buffer, length, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[i]);
        MPI_Send(NULL, 0, MPI_BYTE, 1, BEGIN, MPI_COMM_WORLD);
        MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
    }
    if (rank == 1) {
        MPI_Recv(NULL, 0, MPI_BYTE, 0, BEGIN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < COUNT; i++) {
            if (i % EVERY == 0) memset(buffer, 0, (size_t)length);
            MPI_Recv(buffer, length, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (i % EVERY == 0) verify(buffer, (size_t)length, seed_of(0, 1, 0, 0), "a message");
        }
    }
    finish("pending");
    return 0;
}
