/* Every operation of MPI_Fetch_and_op, MPI_Accumulate and MPI_Compare_and_swap on words that all ranks change at once, one kind in each phase:
 * whatever their order, the outcome is known, and what the ranks are told of the values before fits together. With the argument "intrinsic"
 * the windows promise what lets a library leave the work to the device's atomics, and with "mapped" behind it they are in memory that is a shared mapping of a
 * file, which others are to have mapped in the end. The last line tells how many of those there were: the first argument is the name of the counter. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/mman.h>
#include <unistd.h>

enum { WORDS = 8, ROUNDS = 50 };

static int rank, ranks;
static MPI_Info promises;
static int64_t *words;
static MPI_Win window;

/* All words begin with `value`. */
static void begin(int64_t value) {
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    for (int word = 0; word < WORDS; word++) words[word] = value;
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
}

static int64_t fetch(int64_t operand, int to, int word, MPI_Datatype type, MPI_Op op) {
    int64_t before = -77;
    MPI_Fetch_and_op(&operand, &before, type, to, word, op, window);
    MPI_Win_flush(to, window);
    return before;
}

/* Each word of this rank is `expected` when all are done. */
static void end(int64_t expected, const char *what) {
    MPI_Win_flush_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int word = 0; word < WORDS; word++) {
        int64_t now = fetch(0, rank, word, MPI_INT64_T, MPI_NO_OP);
        REQUIRE(now == expected, "%s: word %d is %llx, not %llx", what, word, (long long)now, (long long)expected);
    }
}

/* `operand` is applied ROUNDS times by each rank to each word of every rank. */
static void everywhere(MPI_Datatype type, MPI_Op op, int64_t (*operand)(int round)) {
    for (int round = 0; round < ROUNDS; round++)
        for (int to = 0; to < ranks; to++) fetch(operand(round), (rank + to) % ranks, round % WORDS, type, op);
    for (int to = 0; to < ranks; to++)
        for (int word = 0; word < WORDS; word++) fetch(operand(0), to, word, type, op);
}

static int64_t one(int round) { return round * 0 + 1; }
static int64_t bit_of_rank(int round) { return (int64_t)1 << (rank + round * 0); }
static int64_t all_but_own(int round) { return ~bit_of_rank(round); }
static int64_t negative_rank(int round) { return -(rank + 1 + round * 0); }
static int64_t large(int round) { return (int64_t)(0x8000000000000000u + (uint64_t)(rank + round * 0)); }

static int64_t bits(void) { return ((int64_t)1 << ranks) - 1; }

static void operations(void) {
    begin(0), everywhere(MPI_INT64_T, MPI_BOR, bit_of_rank), end(bits(), "or");
    begin(-1), everywhere(MPI_INT64_T, MPI_BAND, all_but_own), end(~bits(), "and");
    begin(7), everywhere(MPI_INT64_T, MPI_MIN, negative_rank), end(-ranks, "signed minimum");
    begin(7), everywhere(MPI_UINT64_T, MPI_MAX, large), end((int64_t)(0x8000000000000000u + (uint64_t)ranks - 1), "unsigned maximum");
}

/* The values before a sum are all different where each rank adds 1: nothing is counted twice. */
static void sums(void) {
    unsigned char *seen = memory((size_t)(ranks * ROUNDS));
    memset(seen, 0, (size_t)(ranks * ROUNDS));
    begin(0);
    int64_t last = -1;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t before = fetch(1, 0, 3, MPI_INT64_T, MPI_SUM);
        REQUIRE(before > last && before < ranks * ROUNDS, "a sum of %lld came after %lld", (long long)before, (long long)last);
        seen[before] = 1, last = before;
    }
    MPI_Allreduce(MPI_IN_PLACE, seen, ranks * ROUNDS, MPI_BYTE, MPI_SUM, MPI_COMM_WORLD);
    for (int at = 0; at < ranks * ROUNDS; at++) REQUIRE(seen[at] == 1, "%d ranks were told %d", seen[at], at);
    begin(5), everywhere(MPI_INT64_T, MPI_SUM, one);
    MPI_Win_flush_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int word = 0; word < WORDS; word++) {
        int64_t expected = 5 + ranks * (1 + ROUNDS / WORDS + (word < ROUNDS % WORDS));
        REQUIRE(fetch(0, rank, word, MPI_INT64_T, MPI_NO_OP) == expected, "word %d is not the sum", word);
    }
    free(seen);
}

/* What one rank puts there, one other finds: the sum of all that was put there and of all that was found differ by the last. */
static void swaps(void) {
    begin(0);
    int64_t put = 0, found = 0, sum[2];
    for (int round = 1; round <= ROUNDS; round++) {
        int64_t value = (int64_t)round * ranks + rank;
        put += value, found += fetch(value, 0, 1, MPI_INT64_T, MPI_REPLACE);
    }
    MPI_Win_flush_all(window);
    sum[0] = put, sum[1] = found;
    MPI_Allreduce(MPI_IN_PLACE, sum, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    int64_t last = fetch(0, 0, 1, MPI_INT64_T, MPI_NO_OP);
    REQUIRE(sum[0] == sum[1] + last, "%lld were put, %lld found, %lld is there", (long long)sum[0], (long long)sum[1], (long long)last);
}

/* Each rank counts on by compare-and-swap; words of four bytes as well as of eight. */
static void compares(MPI_Datatype type, int size) {
    begin(0);
    for (int to = 0; to < ranks; to++) {
        for (int round = 0; round < ROUNDS; round++) {
            int64_t expected = 0, before = -77, next = 1;
            for (;;) {
                before = 0;
                MPI_Compare_and_swap(&next, &expected, &before, type, to, (2 * 8 + 0) / 8, window);
                MPI_Win_flush(to, window);
                if (before == expected) break;
                expected = before, next = before + 1;
            }
        }
    }
    MPI_Win_flush_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    int64_t now = fetch(0, rank, 2, MPI_INT64_T, MPI_NO_OP);
    REQUIRE(now == ranks * ROUNDS, "counting on by words of %d bytes came to %lld", size, (long long)now);
}

/* Arrays of several words, with and without the values before. */
static void arrays(void) {
    int64_t add[WORDS], before[WORDS];
    for (int word = 0; word < WORDS; word++) add[word] = word + 1;
    begin(0);
    for (int round = 0; round < ROUNDS; round++) {
        for (int to = 0; to < ranks; to++) {
            MPI_Accumulate(add, WORDS, MPI_INT64_T, to, 0, WORDS, MPI_INT64_T, MPI_SUM, window);
            MPI_Get_accumulate(add, WORDS, MPI_INT64_T, before, WORDS, MPI_INT64_T, to, 0, WORDS, MPI_INT64_T, MPI_SUM, window);
            MPI_Win_flush(to, window);
            for (int word = 0; word < WORDS; word++)
                REQUIRE(before[word] % (word + 1) == 0, "word %d was %lld in between", word, (long long)before[word]);
        }
    }
    MPI_Win_flush_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int word = 0; word < WORDS; word++) {
        int64_t now = fetch(0, rank, word, MPI_INT64_T, MPI_NO_OP), expected = (int64_t)2 * ROUNDS * ranks * (word + 1);
        REQUIRE(now == expected, "word %d of the arrays is %lld, not %lld", word, (long long)now, (long long)expected);
    }
}

/* The counter of this name, of all ranks. */
static unsigned long long counted(const char *name) {
    MPI_T_pvar_session session;
    MPI_T_pvar_handle handle;
    int index, one = 0;
    unsigned long long count = 0;
    REQUIRE(MPI_T_pvar_get_index(name, MPI_T_PVAR_CLASS_COUNTER, &index) == MPI_SUCCESS, "there is no counter %s", name);
    MPI_T_pvar_session_create(&session);
    REQUIRE(MPI_T_pvar_handle_alloc(session, index, NULL, &handle, &one) == MPI_SUCCESS, "no handle of %s", name);
    MPI_T_pvar_start(session, handle);
    for (int at = 0; at < WORDS; at++) fetch(0, (rank + 1) % ranks, at, MPI_INT64_T, MPI_SUM);
    MPI_T_pvar_read(session, handle, &count);
    MPI_T_pvar_handle_free(session, &handle);
    MPI_T_pvar_session_free(&session);
    MPI_Allreduce(MPI_IN_PLACE, &count, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    return count;
}

/* Memory that is a mapping of a file, which stays open: so others find it. */
static void *mapped(size_t length) {
    int file = memfd_create("atomics", 0);
    REQUIRE(file >= 0 && ftruncate(file, (off_t)length) == 0, "no file for %zu bytes", length);
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(at != MAP_FAILED, "the file can't be mapped");
    return at;
}

/* How many such files this process has mapped. */
static int mappings(void) {
    char line[512];
    int count = 0;
    FILE *list = fopen("/proc/self/maps", "r");
    REQUIRE(list, "no list of mappings");
    while (fgets(line, sizeof line, list)) count += strstr(line, "/memfd:atomics") != NULL;
    fclose(list);
    return count;
}

int main(int argc, char **argv) {
    int provided, is_mapped = argc > 3 && !strcmp(argv[3], "mapped");
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    start(&argc, &argv, &rank, &ranks);
    MPI_Info_create(&promises);
    if (argc > 2 && !strcmp(argv[2], "intrinsic")) {
        MPI_Info_set(promises, "accumulate_ops", "same_op_no_op");
        MPI_Info_set(promises, "acc_single_intrinsic", "true");
    }
    words = is_mapped ? mapped(WORDS * sizeof *words) : memory(WORDS * sizeof *words);
    MPI_Win_create(words, WORDS * sizeof *words, sizeof *words, promises, MPI_COMM_WORLD, &window);
    MPI_Win_lock_all(0, window);
    sums(), operations(), swaps(), arrays();
    compares(MPI_INT64_T, 8), compares(MPI_INT32_T, 4);
    unsigned long long atomics = argc > 1 ? counted(argv[1]) : 0;
    if (is_mapped) REQUIRE(mappings() > 1, "no other rank's words are mapped here");
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Info_free(&promises);
    if (argc > 2) REQUIRE(atomics > 0, "no atomic of the transport was counted");
    MPI_T_finalize();
    finish("atomics");
    if (!is_mapped) free(words);
    return 0;
}
