/* A rank that answers, and then waits outside of MPI for what the answer brings about: the answer leaves without it.
 *
 *     rank 0    question ->                 -> SIGUSR1 to the process that answered
 *     others                answer ->, sigwait
 *
 * The others have sent rank 0 nothing before. */
#include "check.h"

#include <signal.h>
#include <unistd.h>

static void ask(int whom) {
    uint64_t question = seed_of(0, (uint64_t)whom, 1, 0), answer[2];
    MPI_Send(&question, sizeof question, MPI_BYTE, whom, 0, MPI_COMM_WORLD);
    MPI_Recv(answer, sizeof answer, MPI_BYTE, whom, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    REQUIRE(answer[0] == question + 1, "the answer of rank %d", whom);
    REQUIRE(kill((pid_t)answer[1], SIGUSR1) == 0, "no process %ld", (long)answer[1]);
}

static void answer(int rank, const sigset_t *wanted) {
    uint64_t question, reply[2];
    int found;
    MPI_Recv(&question, sizeof question, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    REQUIRE(question == seed_of(0, (uint64_t)rank, 1, 0), "the question");
    reply[0] = question + 1;
    reply[1] = (uint64_t)getpid();
    MPI_Send(reply, sizeof reply, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    REQUIRE(sigwait(wanted, &found) == 0 && found == SIGUSR1, "sigwait");
}

int main(int argc, char **argv) {
    int rank, ranks;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    REQUIRE(sigprocmask(SIG_BLOCK, &wanted, NULL) == 0, "sigprocmask"); /* in every thread that MPI starts, too */
    start(&argc, &argv, &rank, &ranks);
    if (rank == 0)
        for (int whom = 1; whom < ranks; whom++) ask(whom);
    else
        answer(rank, &wanted);
    finish("leaves");
    return 0;
}
