/* What is measured between pairs of ranks: half round trips, and messages a second in windows; every payload checked, the timing
 * left alone by the checking.
 *
 * Rank r of the first half is a pair's leader, rank r + ranks / 2 its follower; all pairs work at the same time. A batch is
 *
 *     all ranks                   rank 0 says: one more
 *     all ranks                   fill the payloads that they send, poison those that they receive; a barrier
 *     [clock] kind->exchange      <- timed, nothing else in it
 *     all ranks                   verify what they have received
 *
 *     size    K times: the leader sends and receives, the follower receives and sends
 *     rate    windows of up to 64 messages, leader to follower; an empty message back answers each window
 *     both    windows of up to 64 messages each way
 *     turns   a message each way, after 10 ms without MPI, which are not timed: programs compute and communicate by turns
 *     line    no messages: the first pair has a cache line go to and fro in memory that both map, the least that any message takes
 *
 * K shrinks as the size grows (`size`: 256 KiB in flight at most, 128 messages at most), so small sizes stay in cache and the
 * clock's own cost is spread. Patterns depend on rank, size, batch and position: a stale or swapped payload is always seen.
 *
 * A result is a line, `KIND BYTES batches N median_us X min_us Y`: microseconds a message, medians and minima over batches; for `size`
 * that is a half round trip, as for `line`, for `rate`, `both` and `turns` the time by all messages of all pairs.
 *
 * The line's memory is reached through /proc, so it is for ranks of one host. */
#ifndef OXIB_MEASURE_H
#define OXIB_MEASURE_H

#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_BATCHES = 20000, FEWEST_BATCHES = 5, WARM_UP = 2, GUARD = 64, WINDOW = 64, PATIENT_SPINS = 20000 };

static int rank, ranks, peer, leads;
static unsigned char *outgoing, *incoming;
static size_t room;
static double took[MOST_BATCHES];

enum payloads { ONE_WAY, BOTH_WAYS, NONE };

struct kind {
    const char *name;
    size_t in_flight;
    int most_slots;
    void (*exchange)(size_t size, int slots);
    enum payloads payloads;
    /* Seconds in which the ranks compute before the clock runs. */
    double computes;
};

static void send_slot(size_t size, int slot) {
    MPI_Send(outgoing + (size_t)slot * size, (int)size, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
}

static void receive_slot(size_t size, int slot) {
    MPI_Recv(incoming + (size_t)slot * size, (int)size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void bounce(size_t size, int slots) {
    if (leads)
        for (int s = 0; s < slots; s++) {
            send_slot(size, s);
            receive_slot(size, s);
        }
    else
        for (int s = 0; s < slots; s++) {
            receive_slot(size, s);
            send_slot(size, s);
        }
}

static int window_at(int first, int slots) {
    return slots - first < WINDOW ? slots - first : WINDOW;
}

static void begin_window(int sends, size_t size, int first, int count, MPI_Request *requests) {
    for (int s = first; s < first + count; s++) {
        unsigned char *at = (sends ? outgoing : incoming) + (size_t)s * size;
        if (sends) MPI_Isend(at, (int)size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, requests++);
        else MPI_Irecv(at, (int)size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, requests++);
    }
}

static void stream(size_t size, int slots) {
    MPI_Request requests[WINDOW];
    for (int first = 0; first < slots; first += WINDOW) {
        int count = window_at(first, slots);
        begin_window(leads, size, first, count, requests);
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
        if (leads) MPI_Recv(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else MPI_Send(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
    }
}

static void cross(size_t size, int slots) {
    MPI_Request requests[2 * WINDOW];
    for (int first = 0; first < slots; first += WINDOW) {
        int count = window_at(first, slots);
        begin_window(0, size, first, count, requests);
        begin_window(1, size, first, count, requests + count);
        MPI_Waitall(2 * count, requests, MPI_STATUSES_IGNORE);
    }
}

/* Memory of rank 0 that its peer maps, too. Every rank calls this. */
static _Atomic unsigned *shared_line(void) {
    long where[2] = {getpid(), -1};
    char path[64];
    if (rank == 0) {
        where[1] = memfd_create("line", MFD_CLOEXEC);
        REQUIRE(where[1] >= 0 && ftruncate((int)where[1], 4096) == 0, "no memory can be shared");
    }
    MPI_Bcast(where, 2, MPI_LONG, 0, MPI_COMM_WORLD);
    snprintf(path, sizeof path, "/proc/%ld/fd/%ld", where[0], where[1]);
    int file = open(path, O_RDWR | O_CLOEXEC);
    REQUIRE(file >= 0, "cannot open %s", path);
    void *line = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(line != MAP_FAILED, "cannot map %s", path);
    close(file);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) close((int)where[1]);
    return line;
}

static _Atomic unsigned *line;
static unsigned turn;

/* A peer that takes that long may want this processor. */
static void await(unsigned value) {
    for (int spins = 0; atomic_load_explicit(line, memory_order_acquire) != value; spins++)
        if (spins >= PATIENT_SPINS) sched_yield();
}

static void hop(size_t size, int slots) {
    (void)size;
    if (rank != 0 && peer != 0) return;
    for (int s = 0; s < slots; s++, turn += 2) {
        if (!leads) await(turn + 1);
        atomic_store_explicit(line, turn + (leads ? 1 : 2), memory_order_release);
        if (leads) await(turn + 2);
    }
}

static const struct kind kinds[] = {
    {"size", 256 << 10, 128, bounce, BOTH_WAYS, 0},
    {"rate", 8 << 20, 16 * WINDOW, stream, ONE_WAY, 0},
    {"both", 4 << 20, 16 * WINDOW, cross, BOTH_WAYS, 0},
    {"turns", 4 << 20, 1, cross, BOTH_WAYS, 0.010},
    {"line", 64 << 10, 128, hop, NONE, 0},
};

static int sends(const struct kind *kind) {
    return kind->payloads == BOTH_WAYS || (kind->payloads == ONE_WAY && leads);
}

static int receives(const struct kind *kind) {
    return kind->payloads == BOTH_WAYS || (kind->payloads == ONE_WAY && !leads);
}

static int slots_for(const struct kind *kind, size_t size) {
    size_t slots = kind->in_flight / (size ? size : 1);
    return slots < 1 ? 1 : slots > (size_t)kind->most_slots ? kind->most_slots : (int)slots;
}

static uint64_t seed_for(int from, size_t size, int batch, int slot) {
    return seed_of((uint64_t)from, size, (uint64_t)batch, (uint64_t)slot);
}

static void prepare(const struct kind *kind, size_t size, int slots, int batch) {
    if (sends(kind))
        for (int s = 0; s < slots; s++) fill(outgoing + (size_t)s * size, size, seed_for(rank, size, batch, s));
    if (receives(kind)) memset(incoming, 0xa5, (size_t)slots * size + GUARD);
}

static void inspect(const struct kind *kind, size_t size, int slots, int batch) {
    if (!receives(kind)) return;
    for (int s = 0; s < slots; s++) verify(incoming + (size_t)s * size, size, seed_for(peer, size, batch, s), kind->name);
    for (int i = 0; i < GUARD; i++)
        REQUIRE(incoming[(size_t)slots * size + i] == 0xa5, "%d bytes behind a %zu-byte receive were written", i + 1, size);
}

/* Without a call of MPI that would look around. */
static void compute(double seconds) {
    double end = MPI_Wtime() + seconds;
    while (MPI_Wtime() < end) {
    }
}

/* Seconds of the timed part on this rank. */
static double one_batch(const struct kind *kind, size_t size, int slots, int batch) {
    prepare(kind, size, slots, batch);
    MPI_Barrier(MPI_COMM_WORLD);
    compute(kind->computes);
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

/* With several pairs a batch takes as long as the slowest of them. */
static double slowest(double seconds) {
    double most = seconds;
    if (ranks > 2) MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A message's microseconds on rank 0; batches warm up first. The result, as a line, in `text`. */
static void measure(const struct kind *kind, size_t size, double seconds, char *text, size_t length) {
    REQUIRE(size <= room, "%zu bytes are more than the %zu that there are buffers for", size, room);
    int slots = slots_for(kind, size), batches = 0, batch = 0;
    double used = 0, wall = MPI_Wtime(), messages = slots * (kind->payloads == ONE_WAY ? 1.0 : 2.0);
    if (kind->exchange == stream || kind->exchange == cross) messages *= ranks / 2;
    if (kind->exchange == hop && line == NULL) line = shared_line();
    while (one_more(batch < WARM_UP || !enough(batches, used, wall, seconds))) {
        double last = slowest(one_batch(kind, size, slots, batch));
        if (batch++ < WARM_UP) {
            wall = MPI_Wtime();
            continue;
        }
        used += last;
        took[batches++] = last / messages;
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
