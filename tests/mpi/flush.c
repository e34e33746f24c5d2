/* btl_flush returns when what was handed over before it is done and its callbacks have run: no sooner, and no matter what is
 * handed over meanwhile. And a put or get of nothing needs no registration.
 *
 * Rank 0 gets from rank 2's memory. Rank 1 sleeps outside of MPI, so that messages to it run out of credits. */
#include "btl.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

enum { SIZE = 4096, CHAINS = 8, MESSAGES = 600, ROUNDS = 2000 };

static struct btl *btl;
static void *far;
static struct window window;
static void *handle;
static char near[SIZE];
static atomic_int running, stop, turns[CHAINS];

static void get(rdma_done *done, void *context) {
    int status = btl->get(btl, far, near, window.address, handle, window.key, SIZE, 0, NO_ORDER, done, context, NULL);
    REQUIRE(status == 0, "get: %d", status);
}

static void count(void *b, void *e, void *l, void *h, void *context, void *d, int status) {
    (void)b, (void)e, (void)l, (void)h, (void)d;
    REQUIRE(status == 0, "the operation ended with %d", status);
    atomic_fetch_add((atomic_int *)context, 1);
}

/* Each end of a get is the beginning of another. */
static void again(void *b, void *e, void *l, void *h, void *context, void *d, int status) {
    count(b, e, l, h, context, d, status);
    if (stop)
        running--;
    else
        get(again, context);
}

static void begin_chains(void) {
    for (int i = 0; i < CHAINS; i++) {
        turns[i] = 0;
        running++;
        get(again, &turns[i]);
    }
}

static void end_chains(void) {
    stop = 1;
    while (running) progress();
    stop = 0;
}

static MPI_Request requests[MESSAGES];

static void send_many(void) {
    static char bytes[64];
    for (int i = 0; i < MESSAGES; i++) MPI_Isend(bytes, sizeof bytes, MPI_BYTE, 1, 3, MPI_COMM_WORLD, &requests[i]);
}

/* A send that waits for a credit finds the completion of the get, which then waits for its callback. */
static void completions_that_have_been_found(void) {
    atomic_int done = 0;
    get(count, &done);
    send_many();
    btl->flush(btl, far);
    REQUIRE(done == 1, "flush returned before the callback of a get that had completed");
}

static void operations_that_begin_meanwhile(void) {
    for (int all = 0; all < 2; all++) {
        begin_chains();
        btl->flush(btl, all ? NULL : far);
        for (int i = 0; i < CHAINS; i++) REQUIRE(turns[i] > 0, "flush returned before the callback of get %d", i);
        end_chains();
    }
}

static void *other_thread(void *unused) {
    begin_chains();
    while (!stop) progress();
    return unused;
}

static void other_threads(void) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, other_thread, NULL) == 0, "no thread");
    while (turns[CHAINS - 1] == 0) sched_yield(); /* from here on both are at work */
    for (int i = 0; i < ROUNDS; i++) {
        atomic_int done = 0;
        get(count, &done);
        btl->flush(btl, far);
        REQUIRE(done == 1, "round %d: flush returned before the callback, which another thread may have begun", i);
    }
    stop = 1;
    pthread_join(thread, NULL);
    while (running) progress();
}

static void flush_in_a_callback(void *b, void *e, void *l, void *h, void *context, void *d, int status) {
    btl->flush(btl, far);
    count(b, e, l, h, context, d, status);
}

static void from_within_a_callback(void) {
    atomic_int done = 0;
    get(flush_in_a_callback, &done);
    get(flush_in_a_callback, &done);
    while (done < 2) progress();
}

static void of_nothing(void) {
    atomic_int done = 0;
    for (int i = 0; i < 2; i++) {
        rdma *start = i ? btl->get : btl->put;
        int status = start(btl, far, NULL, window.address, NULL, window.key, 0, 0, NO_ORDER, count, &done, NULL);
        REQUIRE(status == 0, "of 0 bytes: %d", status);
    }
    btl->flush(btl, far);
    REQUIRE(done == 2, "%d of 2 operations of 0 bytes are over", done);
}

static void flusher(const char *part) {
    pid_t sleeper;
    MPI_Recv(&window, sizeof window, MPI_BYTE, 2, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Recv(&sleeper, sizeof sleeper, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    far = endpoint_of(btl, 2);
    handle = btl->register_mem(btl, NULL, near, sizeof near, ANY_ACCESS);
    MPI_Send(NULL, 0, MPI_BYTE, 2, 2, MPI_COMM_WORLD);
    MPI_Send(NULL, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD);
    if (strcmp(part, "found") == 0) completions_that_have_been_found();
    if (strcmp(part, "meanwhile") == 0) operations_that_begin_meanwhile();
    if (strcmp(part, "within") == 0) from_within_a_callback();
    if (strcmp(part, "threads") == 0) other_threads();
    if (strcmp(part, "nothing") == 0) of_nothing();
    if (strcmp(part, "found") != 0) send_many();
    kill(sleeper, SIGUSR1);
    MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
    btl->deregister_mem(btl, handle);
}

static void sleeper(const sigset_t *signals) {
    static char bytes[64];
    pid_t pid = getpid();
    int signal;
    MPI_Send(&pid, sizeof pid, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    MPI_Recv(NULL, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    sigwait(signals, &signal);
    for (int i = 0; i < MESSAGES; i++)
        MPI_Recv(bytes, sizeof bytes, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void owner(void) {
    static char memory[SIZE];
    window = expose(btl, memory, sizeof memory);
    MPI_Send(&window, sizeof window, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    MPI_Recv(NULL, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv) {
    int rank, size, level;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    const char *part = argc > 1 ? argv[1] : "found";
    MPI_Init_thread(&argc, &argv, strcmp(part, "threads") == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check_rank = rank;
    REQUIRE(size == 3, "3 ranks");
    btl = module();
    if (rank == 0) flusher(part);
    if (rank == 1) sleeper(&signals);
    if (rank == 2) owner();
    finish("flush");
    return 0;
}
