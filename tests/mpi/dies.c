/* A job that ends badly, on purpose, in the middle of traffic. Argument: `kill` (the last rank is gone as by kill -9) or
 * `abort` (it calls MPI_Abort with code 17). The others keep sending and receiving until the job is taken down. */
#include "check.h"
#include <signal.h>

int main(int argc, char **argv) {
    int rank, ranks, flag;
    static unsigned char out[20000], in[20000];
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(argc == 2, "usage: dies kill|abort");
    int peer = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    for (int n = 0;; n++) {
        MPI_Request requests[2];
        MPI_Irecv(in, sizeof in, MPI_BYTE, from, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, n % 2 ? sizeof out : 100, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[1]);
        if (n == 200 && rank == ranks - 1) {
            if (strcmp(argv[1], "abort") == 0) MPI_Abort(MPI_COMM_WORLD, 17);
            raise(SIGKILL);
        }
        do MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
        while (!flag);
    }
}
