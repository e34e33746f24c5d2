/* A program that starts others (fork, exec) between its messages, as many do, from memory that requests are open on. Every other child runs
 * no other program, but ends by exit(3), with what its parent's libraries have registered for that. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 20, SIZE = 150000 };

static void run_something(int round) {
    pid_t child = fork();
    REQUIRE(child >= 0, "cannot fork");
    if (child == 0) {
        if (round % 4 < 2) exit(0);
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
}

int main(int argc, char **argv) {
    int rank, ranks;
    static unsigned char out[SIZE], in[SIZE];
    start(&argc, &argv, &rank, &ranks);
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (int round = 0; round < ROUNDS; round++) {
        int size = round % 2 ? SIZE : 500;
        MPI_Request requests[2];
        fill(out, (size_t)size, seed_of((uint64_t)rank, 0, 0, (uint64_t)round));
        MPI_Irecv(in, size, MPI_BYTE, left, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, size, MPI_BYTE, right, 0, MPI_COMM_WORLD, &requests[1]);
        run_something(round);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        verify(in, (size_t)size, seed_of((uint64_t)left, 0, 0, (uint64_t)round), "forks");
    }
    finish("forks");
    return 0;
}
