/* A rank that is stopped (SIGSTOP) is waited for: meanwhile others may send to it, and all of it arrives once it goes on.
 * Rank 0 wakes it after it has seen it stopped and has tried for a second to make progress. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

enum { MESSAGES = 300, MOST = 100000 };

static size_t size_at(int n) { return n % 60 == 59 ? MOST : mix((uint64_t)n) % 3000; }

static int is_stopped(int pid) {
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL && fscanf(file, "%*d %*s %c", &state) == 1, "cannot read %s", path);
    fclose(file);
    return state == 'T';
}

static void send_to_stopped(int pid) {
    static unsigned char *out[MESSAGES];
    MPI_Request requests[MESSAGES];
    int done = 0;
    while (!is_stopped(pid)) continue;
    for (int n = 0; n < MESSAGES; n++) {
        out[n] = memory(size_at(n));
        fill(out[n], size_at(n), seed_of(0, 1, 0, (uint64_t)n));
        MPI_Isend(out[n], (int)size_at(n), MPI_BYTE, 1, n, MPI_COMM_WORLD, &requests[n]);
    }
    for (double begin = MPI_Wtime(); MPI_Wtime() - begin < 1.0;) MPI_Testall(MESSAGES, requests, &done, MPI_STATUSES_IGNORE);
    REQUIRE(!done, "100000-byte messages were received by a stopped process");
    kill(pid, SIGCONT);
    MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
}

static void stop_then_receive(void) {
    static unsigned char in[MOST];
    raise(SIGSTOP);
    for (int n = 0; n < MESSAGES; n++) {
        MPI_Recv(in, MOST, MPI_BYTE, 0, n, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(in, size_at(n), seed_of(0, 1, 0, (uint64_t)n), "paused");
    }
}

int main(int argc, char **argv) {
    int rank, ranks, pid = (int)getpid();
    start(&argc, &argv, &rank, &ranks);
    /* The answer shows that the pid has left the process that is about to stop: a completed send may still be its own. */
    if (rank == 1) {
        MPI_Send(&pid, 1, MPI_INT, 0, 1000, MPI_COMM_WORLD);
        MPI_Recv(NULL, 0, MPI_INT, 0, 1001, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (rank == 0) {
        MPI_Recv(&pid, 1, MPI_INT, 1, 1000, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(NULL, 0, MPI_INT, 1, 1001, MPI_COMM_WORLD);
    }
    if (rank == 0) send_to_stopped(pid);
    if (rank == 1) stop_then_receive();
    finish("paused");
    return 0;
}
