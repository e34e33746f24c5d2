/* MPI_THREAD_MULTIPLE, two ranks: how long 8-byte messages of the main threads take while second threads flood each other.
 * `contend MILLISECONDS [test]`: alone, beside windows of 64 messages of 8 bytes, beside windows of 4 of 1 MiB; with `test` all
 * threads wait in loops of MPI_Test instead of MPI_Recv and MPI_Waitall. The median is that of all messages, the mean that of the
 * time: where threads take turns by slices of the scheduler, most messages go in slices without a flood. `cargo xtask bench
 * --threads` makes a table of the reports. Both floods are checked. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { SAMPLES = 1 << 20, WARM_UP = 50, TAG_PING = 1, TAG_WINDOW = 2, TAG_FLOOD = 3, TAG_TAKEN = 4, MOST = 64 };

typedef struct {
    const char *name;
    int bytes, messages; /* of a window; no message: no flood */
} Flood;

static const Flood floods[] = {{"alone", 0, 0}, {"small", 8, 64}, {"large", 1 << 20, 4}};

static int rank, in_test_loops;
static MPI_Comm apart; /* the second threads' */
static atomic_int over;
static atomic_long windows;
static double samples[SAMPLES];

static void wait_all(int count, MPI_Request *requests) {
    if (!in_test_loops) {
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
        return;
    }
    for (int i = 0, done = 0; i < count; i++, done = 0)
        while (!done) MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
}

static void receive(void *buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm) {
    if (!in_test_loops) {
        MPI_Recv(buffer, count, type, from, tag, comm, MPI_STATUS_IGNORE);
        return;
    }
    MPI_Request request;
    MPI_Irecv(buffer, count, type, from, tag, comm, &request);
    wait_all(1, &request);
}

/* Rank 0's second thread: says before each window whether it comes, and waits until it was taken. */
static void send_windows(const Flood *flood, unsigned char *buffer) {
    MPI_Request requests[MOST];
    for (;; windows++) {
        int comes = !atomic_load(&over);
        MPI_Send(&comes, 1, MPI_INT, 1, TAG_WINDOW, apart);
        if (!comes) return;
        for (int i = 0; i < flood->messages; i++)
            MPI_Isend(buffer, flood->bytes, MPI_BYTE, 1, TAG_FLOOD, apart, &requests[i]);
        wait_all(flood->messages, requests);
        receive(NULL, 0, MPI_BYTE, 1, TAG_TAKEN, apart);
    }
}

static void take_windows(const Flood *flood, unsigned char *buffer, uint64_t seed) {
    MPI_Request requests[MOST];
    int comes;
    for (;; windows++) {
        receive(&comes, 1, MPI_INT, 0, TAG_WINDOW, apart);
        if (!comes) return;
        memset(buffer, 0, 8);
        for (int i = 0; i < flood->messages; i++)
            MPI_Irecv(buffer + (size_t)i * (size_t)flood->bytes, flood->bytes, MPI_BYTE, 0, TAG_FLOOD, apart, &requests[i]);
        wait_all(flood->messages, requests);
        if (windows % 64 == 0) verify(buffer, (size_t)flood->bytes, seed, "a message of the flood");
        MPI_Send(NULL, 0, MPI_BYTE, 0, TAG_TAKEN, apart);
    }
}

static void *second_thread(void *argument) {
    const Flood *flood = argument;
    uint64_t seed = seed_of(0, 1, (uint64_t)flood->bytes, 0);
    size_t length = (size_t)flood->bytes * (rank == 0 ? 1 : (size_t)flood->messages);
    unsigned char *buffer = memory(length);
    if (rank == 0) {
        fill(buffer, length, seed);
        send_windows(flood, buffer);
    } else {
        take_windows(flood, buffer, seed);
    }
    free(buffer);
    return NULL;
}

/* One round trip; the message says whether another one follows. */
static int ping(int more) {
    if (rank == 0) {
        MPI_Send(&more, 1, MPI_INT, 1, TAG_PING, MPI_COMM_WORLD);
        receive(&more, 1, MPI_INT, 1, TAG_PING, MPI_COMM_WORLD);
    } else {
        receive(&more, 1, MPI_INT, 0, TAG_PING, MPI_COMM_WORLD);
        MPI_Send(&more, 1, MPI_INT, 0, TAG_PING, MPI_COMM_WORLD);
    }
    return more;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const Flood *flood, double seconds) {
    long count = 0;
    double begin = MPI_Wtime(), now = begin;
    for (int i = 0; i < WARM_UP; i++) ping(1);
    if (rank != 0) {
        while (ping(1)) continue;
        return;
    }
    for (begin = now = MPI_Wtime(); now < begin + seconds && count < SAMPLES; count++) {
        double last = now;
        ping(1);
        now = MPI_Wtime();
        samples[count] = (now - last) * 5e5;
    }
    ping(0);
    REQUIRE(count > 0, "no round trip within %.1f s", seconds);
    qsort(samples, (size_t)count, sizeof *samples, ascending);
    double rate = (double)windows * flood->messages / (now - begin);
    printf("contend %s median %.3f tail %.3f mean %.3f rate %.0f\n", flood->name, samples[count / 2],
           samples[count - 1 - count / 100], (now - begin) / (double)count * 5e5, rate);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int ranks, provided;
    double seconds = argc > 1 ? atof(argv[1]) / 1000 : 1;
    in_test_loops = argc > 2 && strcmp(argv[2], "test") == 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check_rank = rank;
    REQUIRE(provided == MPI_THREAD_MULTIPLE, "this MPI offers thread level %d only", provided);
    REQUIRE(ranks == 2, "this program is for 2 ranks");
    MPI_Comm_dup(MPI_COMM_WORLD, &apart);
    for (size_t i = 0; i < sizeof floods / sizeof *floods; i++) {
        pthread_t thread;
        atomic_store(&over, 0);
        windows = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        int floods_now = floods[i].messages > 0;
        if (floods_now)
            REQUIRE(pthread_create(&thread, NULL, second_thread, (void *)&floods[i]) == 0, "cannot start a thread");
        measure(&floods[i], seconds);
        atomic_store(&over, 1);
        if (floods_now) pthread_join(thread, NULL);
    }
    MPI_Comm_free(&apart);
    finish("contend");
    return 0;
}
