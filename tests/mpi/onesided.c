/* One-sided communication: put, get, accumulate, fetch-and-op and compare-and-swap under all three kinds of synchronisation. */
#include "check.h"

enum { SLOT = 200000, COUNTERS = 16 };

static int rank, ranks;
static unsigned char *window_memory;
static MPI_Win window;

/* Rank r owns slot r of every window; everybody writes into its slot at everybody, checked by the owner of the memory. */
static void put_with_fence(int size) {
    unsigned char *out = memory((size_t)size);
    MPI_Win_fence(0, window);
    fill(out, (size_t)size, seed_of((uint64_t)rank, 1, (uint64_t)size, 0));
    for (int to = 0; to < ranks; to++) MPI_Put(out, size, MPI_BYTE, to, (MPI_Aint)rank * SLOT, size, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    for (int from = 0; from < ranks; from++)
        verify(window_memory + (size_t)from * SLOT, (size_t)size, seed_of((uint64_t)from, 1, (uint64_t)size, 0), "put");
    MPI_Win_fence(0, window);
    free(out);
}

static void get_with_lock(int size) {
    unsigned char *in = memory((size_t)size);
    fill(window_memory + (size_t)rank * SLOT, (size_t)size, seed_of((uint64_t)rank, 2, (uint64_t)size, 0));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++) {
        memset(in, 0, (size_t)size);
        MPI_Win_lock(MPI_LOCK_SHARED, from, 0, window);
        MPI_Get(in, size, MPI_BYTE, from, (MPI_Aint)from * SLOT, size, MPI_BYTE, window);
        MPI_Win_unlock(from, window);
        verify(in, (size_t)size, seed_of((uint64_t)from, 2, (uint64_t)size, 0), "get");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    free(in);
}

static void post_start_complete_wait(int size) {
    MPI_Group world, from, to;
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &left, &from);
    MPI_Group_incl(world, 1, &right, &to);
    unsigned char *out = memory((size_t)size);
    fill(out, (size_t)size, seed_of((uint64_t)rank, 3, (uint64_t)size, 0));
    MPI_Win_post(from, 0, window);
    MPI_Win_start(to, 0, window);
    MPI_Put(out, size, MPI_BYTE, right, (MPI_Aint)rank * SLOT, size, MPI_BYTE, window);
    MPI_Win_complete(window);
    MPI_Win_wait(window);
    verify(window_memory + (size_t)left * SLOT, (size_t)size, seed_of((uint64_t)left, 3, (uint64_t)size, 0), "pscw");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Group_free(&world), MPI_Group_free(&from), MPI_Group_free(&to);
    free(out);
}

/* Everybody adds to rank 0's counters in every way; afterwards the sums are known. */
static void counters(void) {
    enum { ROUNDS = 100 };
    long *counter = NULL, one = 1, old, ones[COUNTERS];
    MPI_Win counting;
    MPI_Win_create(window_memory, rank == 0 ? COUNTERS * sizeof(long) : 0, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &counting);
    counter = (long *)window_memory;
    if (rank == 0) memset(counter, 0, COUNTERS * sizeof(long));
    for (int i = 0; i < COUNTERS; i++) ones[i] = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, counting);
        MPI_Accumulate(ones, COUNTERS, MPI_LONG, 0, 0, COUNTERS, MPI_LONG, MPI_SUM, counting);
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, i % COUNTERS, MPI_SUM, counting);
        MPI_Win_unlock(0, counting);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    long expected = ROUNDS * ranks + ROUNDS / COUNTERS * ranks;
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, counting);
        for (int i = 0; i < COUNTERS; i++) {
            long extra = i < ROUNDS % COUNTERS ? ranks : 0;
            REQUIRE(counter[i] == expected + extra, "counter %d is %ld, not %ld", i, counter[i], expected + extra);
        }
        MPI_Win_unlock(0, counting);
    }
    MPI_Win_free(&counting);
}

/* A lock by compare-and-swap on rank 0, around an unprotected increment. */
static void compare_and_swap(void) {
    long zero = 0, mine = rank + 1, seen, total;
    MPI_Win locks;
    MPI_Win_create(window_memory, rank == 0 ? 2 * sizeof(long) : 0, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &locks);
    if (rank == 0) memset(window_memory, 0, 2 * sizeof(long));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, locks);
    for (int i = 0; i < 20; i++) {
        do {
            MPI_Compare_and_swap(&mine, &zero, &seen, MPI_LONG, 0, 0, locks);
            MPI_Win_flush(0, locks);
        } while (seen != 0);
        MPI_Get(&total, 1, MPI_LONG, 0, 1, 1, MPI_LONG, locks);
        MPI_Win_flush(0, locks);
        total++;
        MPI_Put(&total, 1, MPI_LONG, 0, 1, 1, MPI_LONG, locks);
        MPI_Win_flush(0, locks);
        MPI_Compare_and_swap(&zero, &mine, &seen, MPI_LONG, 0, 0, locks);
        MPI_Win_flush(0, locks);
        REQUIRE(seen == mine, "the lock belonged to %ld", seen - 1);
    }
    MPI_Win_unlock_all(locks);
    MPI_Barrier(MPI_COMM_WORLD);
    total = ((long *)window_memory)[1];
    REQUIRE(rank != 0 || total == 20 * ranks, "%ld increments survived of %d", total, 20 * ranks);
    MPI_Win_free(&locks);
}

int main(int argc, char **argv) {
    static const int sizes[] = {1, 8, 1000, 10000, SLOT};
    start(&argc, &argv, &rank, &ranks);
    size_t all = (size_t)ranks * SLOT;
    window_memory = memory(all);
    MPI_Win_create(window_memory, (MPI_Aint)all, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        put_with_fence(sizes[i]);
        get_with_lock(sizes[i]);
        post_start_complete_wait(sizes[i]);
    }
    MPI_Win_free(&window);
    counters();
    compare_and_swap();
    finish("onesided");
    return 0;
}
