/* What is measured between ranks: how long the exchanges of exchanges.h take, every payload checked, the timing left alone by the
 * checking. A batch is
 *
 *     all ranks                   rank 0 says: one more
 *     all ranks                   fill the payloads that they send, poison those that they receive; a barrier
 *     [clock] kind->exchange      <- timed, nothing else in it
 *     all ranks                   verify what they have received
 *
 * There are fewer slots as the size grows (`size`: 256 KiB in flight at most, 128 messages at most), so small sizes stay in cache and the
 * clock's own cost is spread. Patterns depend on rank, size, batch and position: a stale or swapped payload is always seen.
 *
 * A result is a line, `KIND BYTES batches N median_us X min_us Y`: microseconds, medians and minima over batches. For `size` that is a half
 * round trip, as for `line`; for `core` the time of 500 steps on the slowest rank; for `rate`, `both`, `swap`, `turns`, `walks` and `tests` the time by all messages of all pairs; else that of one operation. */
#ifndef OXIB_MEASURE_H
#define OXIB_MEASURE_H

#include "exchanges.h"

enum { MOST_BATCHES = 20000, FEWEST_BATCHES = 5, WARM_UP = 2, GUARD = 64 };

static double took[MOST_BATCHES];

static int sends(const struct kind *kind) {
    switch (kind->payloads) {
    case NONE: return 0;
    case ONE_WAY: return leads;
    case WAY_BACK: return !leads;
    default: return 1;
    }
}

static int receives(const struct kind *kind) {
    switch (kind->payloads) {
    case NONE: return 0;
    case ONE_WAY: return !leads;
    case WAY_BACK: return leads;
    default: return 1;
    }
}

/* The rank whose payload a slot is for this one. */
static int sender_of(const struct kind *kind, int slot) {
    switch (kind->payloads) {
    case FROM_RANKS:
    case FROM_ROOTS: return slot % ranks;
    default: return peer;
    }
}

/* In this slot it is at its sender. */
static int slot_at_sender(const struct kind *kind, int slot) {
    return kind->payloads == FROM_RANKS ? slot - slot % ranks + rank : slot;
}

/* All-to-all takes a slot for each rank. */
static int slots_for(const struct kind *kind, size_t size) {
    size_t slots = kind->in_flight / (size ? size : 1), group = kind->payloads == FROM_RANKS ? (size_t)ranks : 1;
    if (slots > (size_t)kind->most_slots) slots = (size_t)kind->most_slots;
    slots -= slots % group;
    return slots < group ? (int)group : (int)slots;
}

static uint64_t seed_for(int from, size_t size, int batch, int slot) {
    return seed_of((uint64_t)from, size, (uint64_t)batch, (uint64_t)slot);
}

static void prepare(const struct kind *kind, size_t size, int slots, int batch) {
    if (sends(kind))
        for (int s = 0; s < slots; s++) fill(outgoing + (size_t)s * size, size, seed_for(rank, size, batch, s));
    if (receives(kind)) memset(incoming, 0xa5, (size_t)slots * size + GUARD);
    sync_windows();
}

/* The sum of what all ranks have in this slot. */
static void verify_sum(size_t size, int batch, int slot) {
    for (size_t word = 0; word < size / WORD; word++) {
        uint64_t is, wanted = 0;
        for (int r = 0; r < ranks; r++) wanted += pattern_word(seed_for(r, size, batch, slot), word);
        memcpy(&is, incoming + (size_t)slot * size + word * WORD, WORD);
        REQUIRE(is == wanted, "sum %zu of slot %d is %llx, not %llx", word, slot, (unsigned long long)is, (unsigned long long)wanted);
    }
}

static void inspect_slot(const struct kind *kind, size_t size, int batch, int slot) {
    int from = sender_of(kind, slot), is_root = kind->payloads == FROM_ROOTS && from == rank;
    if (kind->payloads == SUMS) verify_sum(size, batch, slot);
    else if (!is_root)
        verify(incoming + (size_t)slot * size, size, seed_for(from, size, batch, slot_at_sender(kind, slot)), kind->name);
}

static void inspect(const struct kind *kind, size_t size, int slots, int batch) {
    if (!receives(kind)) return;
    sync_windows();
    for (int s = 0; s < slots; s++) inspect_slot(kind, size, batch, s);
    for (int i = 0; i < GUARD; i++)
        REQUIRE(incoming[(size_t)slots * size + i] == 0xa5, "%d bytes behind a %zu-byte receive were written", i + 1, size);
}

/* Seconds of the timed part on this rank. */
static double one_batch(const struct kind *kind, size_t size, int slots, int batch) {
    prepare(kind, size, slots, batch);
    MPI_Barrier(MPI_COMM_WORLD);
    work_alone(kind);
    double begin = MPI_Wtime();
    kind->exchange(size, slots);
    double end = MPI_Wtime();
    inspect(kind, size, slots, batch);
    return end - begin;
}

/* Rank 0 has measured enough: after the fewest batches, when the timed parts have used the time, or all parts four times as much. */
static int enough(int batches, double used, double wall, double seconds) {
    if (batches < FEWEST_BATCHES) return 0;
    return batches == MOST_BATCHES || used >= seconds || MPI_Wtime() - wall >= 4 * seconds;
}

static int one_more(int go) {
    MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return go;
}

/* With several pairs, or where all ranks do the same, a batch takes as long as the slowest of them. */
static double slowest(const struct kind *kind, double seconds) {
    double most = seconds;
    if (ranks > 2 || kind->exchange == count_up) MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* By what the time of a batch is divided: exchange by exchange, all pairs together where they send in windows. */
static double exchanges_in(const struct kind *kind, int slots) {
    switch (kind->payloads) {
    case FROM_RANKS: return slots / ranks;
    case BOTH_WAYS: return kind->exchange == bounce ? slots * 2.0 : slots * 2.0 * (ranks / 2);
    case NONE: return slots * 2.0;
    default: return kind->exchange == stream ? slots * (ranks / 2.0) : slots;
    }
}

/* An exchange's microseconds on rank 0; batches warm up first. The result, as a line, in `text`. */
static void measure(const struct kind *kind, size_t size, double seconds, char *text, size_t length) {
    int slots = slots_for(kind, size), batches = 0, batch = 0;
    REQUIRE(size <= room / slots, "%d of %zu bytes are more than the %zu that there are buffers for", slots, size, room);
    double used = 0, wall = MPI_Wtime();
    open_for(kind);
    while (one_more(batch < WARM_UP || !enough(batches, used, wall, seconds))) {
        double last = slowest(kind, one_batch(kind, size, slots, batch));
        if (batch++ < WARM_UP) {
            wall = MPI_Wtime();
            continue;
        }
        used += last;
        took[batches++] = last / exchanges_in(kind, slots);
    }
    qsort(took, (size_t)batches, sizeof *took, ascending);
    snprintf(text, length, "%s %zu batches %d median_us %.5f min_us %.5f", kind->name, size, batches, took[batches / 2] * 1e6,
             took[0] * 1e6);
}

/* `BYTES`, or `KIND:BYTES`. */
static const struct kind *parse_word(const char *word, size_t *size) {
    const char *colon = strchr(word, ':');
    *size = strtoull(colon ? colon + 1 : word, NULL, 10);
    size_t length = colon ? (size_t)(colon - word) : 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (colon ? strlen(kinds[k].name) == length && strncmp(word, kinds[k].name, length) == 0 : k == 0) return &kinds[k];
    fail("`%s` names nothing that can be measured", word);
    return NULL;
}

/* Buffers for every kind, and for messages of up to `largest` bytes. */
static void make_buffers(size_t largest) {
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (kinds[k].in_flight > largest) largest = kinds[k].in_flight;
    REQUIRE(largest <= 1u << 30, "a size of %zu bytes is more than 1 GiB", largest);
    room = largest;
    outgoing = memory(largest + GUARD);
    incoming = memory(largest + GUARD);
}

/* The ranks, and who is whose peer. */
static void make_pairs(int *argc, char ***argv) {
    start(argc, argv, &rank, &ranks);
    REQUIRE(ranks % 2 == 0, "pairs take an even number of ranks, not %d", ranks);
    leads = rank < ranks / 2;
    peer = leads ? rank + ranks / 2 : rank - ranks / 2;
}

#endif
