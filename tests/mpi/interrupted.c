/* A program with a handler for a signal that comes every millisecond and interrupts system calls (no SA_RESTART), through connections,
 * messages of all lengths and waits. */
#include "check.h"
#include <signal.h>
#include <sys/time.h>

enum { ROUNDS = 300, SIZE = 200000 };

static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

int main(int argc, char **argv) {
    int rank, ranks;
    static unsigned char out[SIZE], in[SIZE];
    struct sigaction action = {0};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    start(&argc, &argv, &rank, &ranks);
    action.sa_handler = on_alarm;
    REQUIRE(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0, "no timer");
    for (int round = 0, more = 1; more; round++) {
        int size = round % 3 == 0 ? 8 : round % 3 == 1 ? 5000 : SIZE, step = 1 + round % (ranks - 1);
        int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks, mine;
        fill(out, (size_t)size, seed_of((uint64_t)rank, (uint64_t)to, 0, (uint64_t)round));
        MPI_Sendrecv(out, size, MPI_BYTE, to, 0, in, size, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(in, (size_t)size, seed_of((uint64_t)from, (uint64_t)rank, 0, (uint64_t)round), "interrupted");
        mine = round < ROUNDS || alarms < 100;
        MPI_Allreduce(&mine, &more, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    finish("interrupted");
    return 0;
}
