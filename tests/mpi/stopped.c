/* A rank that is stopped (SIGSTOP) before anybody has connected to it holds up nobody else: the others send it their first
 * messages, then connect to each other and exchange more, all while it stands. Then rank 0 wakes it, and it gets everything.
 *
 * Its pid goes through a file, for a message would be a connection. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

enum { SIZE = 2000, FIRST = 0, AMONG = 1, DONE = 2 };

static int rank, last;
static char path[256];

static void note_pid(void) {
    char draft[300];
    snprintf(draft, sizeof draft, "%s.new", path);
    FILE *file = fopen(draft, "w");
    REQUIRE(file != NULL && fprintf(file, "%d\n", (int)getpid()) > 0 && fclose(file) == 0, "cannot write %s", draft);
    REQUIRE(rename(draft, path) == 0, "cannot make %s", path);
}

static int noted_pid(void) {
    int pid = 0;
    FILE *file;
    while ((file = fopen(path, "r")) == NULL) usleep(1000);
    REQUIRE(fscanf(file, "%d", &pid) == 1, "no pid in %s", path);
    fclose(file);
    return pid;
}

static int is_stopped(int pid) {
    char stat[64], state = '?';
    snprintf(stat, sizeof stat, "/proc/%d/stat", pid);
    FILE *file = fopen(stat, "r");
    REQUIRE(file != NULL && fscanf(file, "%*d %*s %c", &state) == 1, "cannot read %s", stat);
    fclose(file);
    return state == 'T';
}

/* Everybody but the stopped one to everybody but it. */
static void exchange(void) {
    unsigned char *out = memory((size_t)last * SIZE), *in = memory((size_t)last * SIZE);
    MPI_Request *requests = memory(2 * (size_t)last * sizeof *requests);
    int count = 0;
    for (int peer = 0; peer < last; peer++) {
        size_t at = (size_t)peer * SIZE;
        if (peer == rank) continue;
        fill(out + at, SIZE, seed_of((uint64_t)rank, (uint64_t)peer, AMONG, 0));
        MPI_Irecv(in + at, SIZE, MPI_BYTE, peer, AMONG, MPI_COMM_WORLD, &requests[count++]);
        MPI_Isend(out + at, SIZE, MPI_BYTE, peer, AMONG, MPI_COMM_WORLD, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    for (int peer = 0; peer < last; peer++)
        if (peer != rank) verify(in + (size_t)peer * SIZE, SIZE, seed_of((uint64_t)peer, (uint64_t)rank, AMONG, 0), "while one stands");
    free(requests);
    free(in);
    free(out);
}

static void go_on(void) {
    static unsigned char first[SIZE];
    MPI_Request request;
    int pid = noted_pid();
    while (!is_stopped(pid)) usleep(1000);
    fill(first, SIZE, seed_of((uint64_t)rank, (uint64_t)last, FIRST, 0));
    MPI_Isend(first, SIZE, MPI_BYTE, last, FIRST, MPI_COMM_WORLD, &request);
    exchange();
    if (rank == 0) {
        for (int peer = 1; peer < last; peer++)
            MPI_Recv(NULL, 0, MPI_BYTE, peer, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        REQUIRE(is_stopped(pid), "rank %d went on by itself", last);
        kill(pid, SIGCONT);
    } else {
        MPI_Send(NULL, 0, MPI_BYTE, 0, DONE, MPI_COMM_WORLD);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void stand(void) {
    static unsigned char first[SIZE];
    note_pid();
    raise(SIGSTOP);
    unlink(path);
    for (int peer = 0; peer < last; peer++) {
        MPI_Recv(first, SIZE, MPI_BYTE, peer, FIRST, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(first, SIZE, seed_of((uint64_t)peer, (uint64_t)last, FIRST, 0), "sent to one who stood");
    }
}

int main(int argc, char **argv) {
    int ranks;
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(ranks >= 3, "at least three ranks, not %d", ranks);
    last = ranks - 1;
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/oxib-stopped-%d", folder ? folder : "/tmp", (int)getppid());
    if (rank == last) stand();
    else go_on();
    finish("stopped");
    return 0;
}
