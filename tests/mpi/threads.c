/* MPI_THREAD_MULTIPLE: several threads of every rank exchange with their partners on every other rank at once, each on a
 * communicator of its own and, in a second pass, all on one communicator, told apart by tags. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 60 };
static const int sizes[] = {8, 600, 5000, 40000};

static int rank, ranks;
static MPI_Comm own[THREADS];

typedef struct {
    int number;
    MPI_Comm comm;
} Task;

static void exchange(const Task *task, int round, int peer, unsigned char *out, unsigned char *in) {
    int size = sizes[(round + task->number) % 4], tag = task->number * 1000 + round;
    MPI_Request request;
    fill(out, (size_t)size, seed_of((uint64_t)rank, (uint64_t)peer, (uint64_t)task->number, (uint64_t)round));
    MPI_Irecv(in, size, MPI_BYTE, peer, tag, task->comm, &request);
    MPI_Send(out, size, MPI_BYTE, peer, tag, task->comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    verify(in, (size_t)size, seed_of((uint64_t)peer, (uint64_t)rank, (uint64_t)task->number, (uint64_t)round), "threads");
}

static void *work(void *argument) {
    const Task *task = argument;
    unsigned char *out = memory(40000), *in = memory(40000);
    for (int round = 0; round < ROUNDS; round++)
        for (int step = 1; step < ranks; step++) {
            int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
            if (to == from) {
                exchange(task, round, to, out, in);
                continue;
            }
            exchange(task, round, rank < to ? to : from, out, in);
            exchange(task, round, rank < to ? from : to, out, in);
        }
    free(out), free(in);
    return NULL;
}

static void all_at_once(int shared) {
    pthread_t threads[THREADS];
    Task tasks[THREADS];
    for (int t = 0; t < THREADS; t++) {
        tasks[t] = (Task){t, shared ? MPI_COMM_WORLD : own[t]};
        REQUIRE(pthread_create(&threads[t], NULL, work, &tasks[t]) == 0, "cannot start thread %d", t);
    }
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check_rank = rank;
    REQUIRE(provided == MPI_THREAD_MULTIPLE, "this MPI offers thread level %d only", provided);
    for (int t = 0; t < THREADS; t++) MPI_Comm_dup(MPI_COMM_WORLD, &own[t]);
    all_at_once(0);
    all_at_once(1);
    for (int t = 0; t < THREADS; t++) MPI_Comm_free(&own[t]);
    finish("threads");
    return 0;
}
