/* Ranks that are stopped (SIGSTOP) before any rank has connected to them hold up no other: the others send them their first
 * messages, then connect to each other and exchange more, all while those stand. Then rank 0 wakes them, and they get everything.
 *
 * The first argument says how many stand, the last ones; the second how many milliseconds the others give their requests to them before they
 * connect to each other. The pids go through files, for a message would be a connection. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

enum { SIZE = 2000, FIRST = 0, AMONG = 1, DONE = 2 };

/* Those from `first` on stand. */
static int rank, ranks, first;
static char folder[256];

static const char *path_of(int standing) {
    static char path[300];
    snprintf(path, sizeof path, "%s/oxib-stopped-%d-%d", folder, (int)getppid(), standing);
    return path;
}

static void note_pid(void) {
    const char *path = path_of(rank);
    char draft[310];
    snprintf(draft, sizeof draft, "%s.new", path);
    FILE *file = fopen(draft, "w");
    REQUIRE(file != NULL && fprintf(file, "%d\n", (int)getpid()) > 0 && fclose(file) == 0, "cannot write %s", draft);
    REQUIRE(rename(draft, path) == 0, "cannot make %s", path);
}

static int noted_pid(int standing) {
    const char *path = path_of(standing);
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

/* Everybody but the stopped ones to everybody but them. */
static void exchange(void) {
    unsigned char *out = memory((size_t)first * SIZE), *in = memory((size_t)first * SIZE);
    MPI_Request *requests = memory(2 * (size_t)first * sizeof *requests);
    int count = 0;
    for (int peer = 0; peer < first; peer++) {
        size_t at = (size_t)peer * SIZE;
        if (peer == rank) continue;
        fill(out + at, SIZE, seed_of((uint64_t)rank, (uint64_t)peer, AMONG, 0));
        MPI_Irecv(in + at, SIZE, MPI_BYTE, peer, AMONG, MPI_COMM_WORLD, &requests[count++]);
        MPI_Isend(out + at, SIZE, MPI_BYTE, peer, AMONG, MPI_COMM_WORLD, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    for (int peer = 0; peer < first; peer++)
        if (peer != rank) verify(in + (size_t)peer * SIZE, SIZE, seed_of((uint64_t)peer, (uint64_t)rank, AMONG, 0), "while one stands");
    free(requests);
    free(in);
    free(out);
}

static void wake_all(const int *pids) {
    for (int peer = 1; peer < first; peer++)
        MPI_Recv(NULL, 0, MPI_BYTE, peer, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int standing = first; standing < ranks; standing++)
        REQUIRE(is_stopped(pids[standing]), "rank %d went on by itself", standing);
    for (int standing = first; standing < ranks; standing++)
        kill(pids[standing], SIGCONT);
}

static void go_on(int head_start) {
    unsigned char *out = memory((size_t)ranks * SIZE);
    MPI_Request *requests = memory((size_t)ranks * sizeof *requests);
    int *pids = memory((size_t)ranks * sizeof *pids);
    for (int standing = first; standing < ranks; standing++) {
        pids[standing] = noted_pid(standing);
        while (!is_stopped(pids[standing])) usleep(1000);
    }
    for (int standing = first; standing < ranks; standing++) {
        unsigned char *message = out + (size_t)standing * SIZE;
        fill(message, SIZE, seed_of((uint64_t)rank, (uint64_t)standing, FIRST, 0));
        MPI_Isend(message, SIZE, MPI_BYTE, standing, FIRST, MPI_COMM_WORLD, &requests[standing - first]);
    }
    usleep((useconds_t)head_start * 1000);
    exchange();
    if (rank == 0) wake_all(pids);
    else MPI_Send(NULL, 0, MPI_BYTE, 0, DONE, MPI_COMM_WORLD);
    MPI_Waitall(ranks - first, requests, MPI_STATUSES_IGNORE);
    free(pids);
    free(requests);
    free(out);
}

static void stand(void) {
    static unsigned char in[SIZE];
    note_pid();
    raise(SIGSTOP);
    unlink(path_of(rank));
    for (int peer = 0; peer < first; peer++) {
        MPI_Recv(in, SIZE, MPI_BYTE, peer, FIRST, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(in, SIZE, seed_of((uint64_t)peer, (uint64_t)rank, FIRST, 0), "sent to one who stood");
    }
}

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    int standing = argc > 1 ? atoi(argv[1]) : 1;
    REQUIRE(standing >= 1 && ranks >= standing + 2, "at least two ranks besides the %d that stand, not %d in all", standing, ranks);
    first = ranks - standing;
    const char *temporary = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s", temporary ? temporary : "/tmp");
    if (rank >= first) stand();
    else go_on(argc > 2 ? atoi(argv[2]) : 0);
    finish("stopped");
    return 0;
}
