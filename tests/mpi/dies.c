/* A job that ends badly, on purpose, in the middle of traffic. Argument: `abort` (the last rank calls MPI_Abort with code 17); `kill`, `term`,
 * `int` (it gets SIGKILL, SIGTERM, SIGINT); `mpirun-term`, `mpirun-int` (its mpirun gets one). The others keep sending and receiving until the
 * job is taken down. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

static void end(const char *how) {
    const char *signal = strncmp(how, "mpirun-", 7) == 0 ? how + 7 : how;
    int number = strcmp(signal, "term") == 0 ? SIGTERM : strcmp(signal, "int") == 0 ? SIGINT : SIGKILL;
    if (strcmp(how, "abort") == 0) MPI_Abort(MPI_COMM_WORLD, 17);
    kill(signal == how ? getpid() : getppid(), number);
}

int main(int argc, char **argv) {
    int rank, ranks, flag;
    static unsigned char out[RENDEZVOUS], in[RENDEZVOUS];
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(argc == 2, "usage: dies abort|kill|term|int|mpirun-term|mpirun-int");
    int peer = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    for (int n = 0;; n++) {
        MPI_Request requests[2];
        MPI_Irecv(in, sizeof in, MPI_BYTE, from, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, n % 2 ? sizeof out : 100, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[1]);
        if (n == 200 && rank == ranks - 1) end(argv[1]);
        do MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
        while (!flag);
    }
}
