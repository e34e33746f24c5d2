/* How long connections take. Half of the ranks ask: each sends every rank of the other half its first message and waits for the
 * answer, one rank after the other, the askers taking turns ("each"), or all of them at once ("all"). Nothing has passed
 * between an asker and an answerer before, so every answer is one connection later: of 2 n ranks, n * n of them.
 *
 * The askers meet at barriers of their own, over connections that are not counted. MPI_Init ends with a barrier that needs none, so
 * all answerers are in MPI soon after; the askers let a moment pass. */
#include "check.h"

#include <time.h>
#include <unistd.h>

enum { TAG = 1 };

static const useconds_t PAUSE = 300000;

static int rank, half;

/* The same clock in all processes of the host. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t question(int from, int to) { return seed_of((uint64_t)from, (uint64_t)to, 1, 1); }

static void answer_all(void) {
    for (int i = 0; i < half; i++) {
        uint64_t word = 0;
        MPI_Status status;
        MPI_Recv(&word, sizeof word, MPI_BYTE, MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &status);
        REQUIRE(word == question(status.MPI_SOURCE, rank), "the first message of rank %d is wrong", status.MPI_SOURCE);
        word = mix(word);
        MPI_Send(&word, sizeof word, MPI_BYTE, status.MPI_SOURCE, TAG, MPI_COMM_WORLD);
    }
}

/* Asks `count` ranks from `first` on, and writes down how many seconds each answer took. */
static void ask(int first, int count, double *seconds) {
    uint64_t *words = memory(2 * (size_t)count * sizeof *words);
    MPI_Request *requests = memory(2 * (size_t)count * sizeof *requests);
    for (int i = 0; i < count; i++)
        MPI_Irecv(&words[i], sizeof *words, MPI_BYTE, first + i, TAG, MPI_COMM_WORLD, &requests[i]);
    double begin = now();
    for (int i = 0; i < count; i++) {
        words[count + i] = question(rank, first + i);
        MPI_Isend(&words[count + i], sizeof *words, MPI_BYTE, first + i, TAG, MPI_COMM_WORLD, &requests[count + i]);
    }
    for (int done = 0; done < count; done++) {
        int which;
        MPI_Waitany(count, requests, &which, MPI_STATUS_IGNORE);
        seconds[which] = now() - begin;
        REQUIRE(words[which] == mix(question(rank, first + which)), "the answer of rank %d is wrong", first + which);
    }
    MPI_Waitall(count, requests + count, MPI_STATUSES_IGNORE);
    free(requests);
    free(words);
}

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Our half's times, and how long all of it took, to rank 0, which prints them. */
static void report(MPI_Comm askers, double *seconds, double took) {
    int count = half * half;
    double *all = memory((size_t)count * sizeof *all);
    MPI_Gather(seconds, half, MPI_DOUBLE, all, half, MPI_DOUBLE, 0, askers);
    if (rank == 0) {
        qsort(all, (size_t)count, sizeof *all, by_time);
        printf("connections %d seconds %.6f first_message_us %.1f %.1f %.1f\n", count, took, all[0] * 1e6,
               all[count / 2] * 1e6, all[count - 1] * 1e6);
        printf("PASS connect\n");
    }
    free(all);
}

static void ask_all(int each) {
    MPI_Group world, group;
    MPI_Comm askers;
    int range[1][3] = {{0, half - 1, 1}};
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_range_incl(world, 1, range, &group);
    MPI_Comm_create_group(MPI_COMM_WORLD, group, TAG + 1, &askers);
    double *seconds = memory((size_t)half * sizeof *seconds), spent = 0, took = 0;
    usleep(PAUSE);
    MPI_Barrier(askers);
    if (each) {
        for (int turn = 0; turn < half; turn++) {
            for (int i = 0; turn == rank && i < half; i++) ask(half + i, 1, &seconds[i]);
            MPI_Barrier(askers);
        }
        for (int i = 0; i < half; i++) spent += seconds[i];
        MPI_Reduce(&spent, &took, 1, MPI_DOUBLE, MPI_SUM, 0, askers);
    } else {
        double begin = now(), first, last;
        ask(half, half, seconds);
        double end = now();
        MPI_Reduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, 0, askers);
        MPI_Reduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, 0, askers);
        took = last - first;
    }
    report(askers, seconds, took);
    free(seconds);
    MPI_Comm_free(&askers);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
}

int main(int argc, char **argv) {
    int ranks;
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(ranks >= 2 && ranks % 2 == 0 && argc == 2, "an even number of ranks, and the word each or all");
    half = ranks / 2;
    if (rank < half)
        ask_all(strcmp(argv[1], "each") == 0);
    else
        answer_all();
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
