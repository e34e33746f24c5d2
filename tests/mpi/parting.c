/* Connections that come up while their process is in MPI_Finalize already: each rank sends the next one its only message, which
 * nothing but MPI_Finalize waits for, and leaves at once. The receiver is outside of MPI for a while, so that it cannot
 * answer in time; it hears the message all the same, passes it on, and leaves in the same way. */
#include "check.h"
#include <unistd.h>

enum { SIZE = 3000 };

static const useconds_t OUTSIDE = 150000;

int main(int argc, char **argv) {
    static unsigned char out[SIZE], in[SIZE];
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    if (rank > 0) {
        usleep(OUTSIDE);
        MPI_Recv(in, SIZE, MPI_BYTE, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(in, SIZE, seed_of((uint64_t)rank - 1, (uint64_t)rank, 0, 0), "a message of one who left");
    }
    if (rank < ranks - 1) {
        MPI_Request request;
        fill(out, SIZE, seed_of((uint64_t)rank, (uint64_t)rank + 1, 0, 0));
        MPI_Isend(out, SIZE, MPI_BYTE, rank + 1, 0, MPI_COMM_WORLD, &request);
        MPI_Request_free(&request);
    } else {
        printf("PASS parting\n");
    }
    MPI_Finalize();
    return 0;
}
