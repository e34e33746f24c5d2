/* What measure.h times: the ways in which ranks exchange `slots` payloads of `size` bytes. Rank r of the first half is a pair's leader,
 * rank r + ranks / 2 its follower; all pairs, or all ranks, work at the same time.
 *
 *     size    the leader sends and receives, the follower receives and sends, slot by slot
 *     rate    windows of up to 64 messages, leader to follower; an empty message back answers each window
 *     both    windows of up to 64 messages each way
 *     turns   a message each way, after 10 ms without MPI, which are not timed: programs compute and communicate by turns
 *     walks   a message each way, after each rank has walked through more memory than a second level cache holds, which is not timed:
 *             programs work on their data, and code and data of MPI have to come back from farther away
 *     tests   a message each way; MPI_Testall between pieces of computation of 10 us, until both are done
 *     sum     MPI_Allreduce: sums of 64-bit integers
 *     everyone  MPI_Alltoall: a slot from each rank to each rank
 *     bcast   MPI_Bcast: slot s from rank s modulo their number
 *     put     the leader writes into the follower's memory: MPI_Put and MPI_Win_flush, slot by slot
 *     get     the leader reads the follower's memory: MPI_Get and MPI_Win_flush
 *     puts    each writes all slots into the other's memory by MPI_Put, and one MPI_Win_flush
 *     gets    each reads all slots of the other's memory by MPI_Get, and one MPI_Win_flush
 *     fetch   the leader adds nothing to each word of the follower's: MPI_Fetch_and_op and MPI_Win_flush, word by word
 *     line    no messages: the first pair has a cache line go to and fro in memory that both map, the least that any message takes
 *     core    no messages: all ranks count, which takes longer where another thread uses the same core
 *
 * The line's memory is reached through /proc, so it is for ranks of one host. */
#ifndef OXIB_EXCHANGES_H
#define OXIB_EXCHANGES_H

#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WINDOW = 64, PATIENT_SPINS = 20000, WORD = sizeof(uint64_t), STEPS = 1000 };

static int rank, ranks, peer, leads;
static unsigned char *outgoing, *incoming;
static size_t room;

/* From whom the payload of a slot comes: the pair's leader, its follower, each other; every rank's own; the rank whose number is the
 * slot's, modulo the ranks' number; the sum of all; nobody. */
enum payloads { ONE_WAY, WAY_BACK, BOTH_WAYS, FROM_RANKS, FROM_ROOTS, SUMS, NONE };

struct kind {
    const char *name;
    size_t in_flight;
    int most_slots;
    void (*exchange)(size_t size, int slots);
    enum payloads payloads;
    /* Seconds in which the ranks compute before the clock runs, and whether they walk through memory of theirs meanwhile. */
    double computes;
    int walks;
};

/* Without a call of MPI that would look around. */
static void compute(double seconds) {
    double end = MPI_Wtime() + seconds;
    while (MPI_Wtime() < end) {
    }
}

/* Most second level caches have 2 MiB at most. */
static void walk(void) {
    enum { BYTES = 4 << 20, PASSES = 2 };
    static unsigned char walked[BYTES];
    for (int pass = 0; pass < PASSES; pass++)
        for (int at = 0; at < BYTES; at += 64) ((volatile unsigned char *)walked)[at]++;
}

/* What comes before the clock runs. A walk is over before that time, so that the ranks begin together. */
static void work_alone(const struct kind *kind) {
    double begin = MPI_Wtime();
    if (kind->walks) walk();
    compute(kind->computes - (MPI_Wtime() - begin));
}

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

static void cross_by_tests(size_t size, int slots) {
    MPI_Request requests[2 * WINDOW];
    begin_window(0, size, 0, slots, requests);
    begin_window(1, size, 0, slots, requests + slots);
    for (int done = 0; !done;) {
        compute(10e-6);
        MPI_Testall(2 * slots, requests, &done, MPI_STATUSES_IGNORE);
    }
}

static void sum(size_t size, int slots) {
    REQUIRE(size % WORD == 0, "sums are of %d bytes each, which do not divide %zu", WORD, size);
    for (int s = 0; s < slots; s++)
        MPI_Allreduce(outgoing + (size_t)s * size, incoming + (size_t)s * size, (int)(size / WORD), MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}

static void from_everyone(size_t size, int slots) {
    for (int s = 0; s < slots; s += ranks) {
        unsigned char *out = outgoing + (size_t)s * size, *in = incoming + (size_t)s * size;
        MPI_Alltoall(out, (int)size, MPI_BYTE, in, (int)size, MPI_BYTE, MPI_COMM_WORLD);
    }
}

static void broadcast(size_t size, int slots) {
    for (int s = 0; s < slots; s++) {
        int root = s % ranks;
        MPI_Bcast((rank == root ? outgoing : incoming) + (size_t)s * size, (int)size, MPI_BYTE, root, MPI_COMM_WORLD);
    }
}

/* What each rank shows the others: what it has received, and what it sends. */
static MPI_Win received = MPI_WIN_NULL, shown = MPI_WIN_NULL;

/* Every rank calls these. */
static void open_window(void *memory, MPI_Win *window) {
    MPI_Win_create(memory, (MPI_Aint)room, 1, MPI_INFO_NULL, MPI_COMM_WORLD, window);
    MPI_Win_lock_all(0, *window);
}

static void close_window(MPI_Win *window) {
    if (*window == MPI_WIN_NULL) return;
    MPI_Win_unlock_all(*window);
    MPI_Win_free(window);
}

/* What this rank, or another one, has written into shown memory is seen by the other. */
static void sync_windows(void) {
    if (received != MPI_WIN_NULL) MPI_Win_sync(received);
    if (shown != MPI_WIN_NULL) MPI_Win_sync(shown);
}

/* The follower waits for a word that the leader is done. */
static void tell_follower(void) {
    if (leads) MPI_Send(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
    else MPI_Recv(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void put(size_t size, int slots) {
    for (int s = 0; leads && s < slots; s++) {
        MPI_Aint at = (MPI_Aint)((size_t)s * size);
        MPI_Put(outgoing + at, (int)size, MPI_BYTE, peer, at, (int)size, MPI_BYTE, received);
        MPI_Win_flush(peer, received);
    }
    tell_follower();
}

static void get(size_t size, int slots) {
    for (int s = 0; leads && s < slots; s++) {
        MPI_Aint at = (MPI_Aint)((size_t)s * size);
        MPI_Get(incoming + at, (int)size, MPI_BYTE, peer, at, (int)size, MPI_BYTE, shown);
        MPI_Win_flush(peer, shown);
    }
    tell_follower();
}

/* Each waits for a word that the other is done. */
static void tell_each_other(void) {
    MPI_Sendrecv(NULL, 0, MPI_BYTE, peer, 2, NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void put_all(size_t size, int slots) {
    for (int s = 0; s < slots; s++) {
        MPI_Aint at = (MPI_Aint)((size_t)s * size);
        MPI_Put(outgoing + at, (int)size, MPI_BYTE, peer, at, (int)size, MPI_BYTE, received);
    }
    MPI_Win_flush(peer, received);
    tell_each_other();
}

static void get_all(size_t size, int slots) {
    for (int s = 0; s < slots; s++) {
        MPI_Aint at = (MPI_Aint)((size_t)s * size);
        MPI_Get(incoming + at, (int)size, MPI_BYTE, peer, at, (int)size, MPI_BYTE, shown);
    }
    MPI_Win_flush(peer, shown);
    tell_each_other();
}

static void fetch(size_t size, int slots) {
    static const uint64_t nothing = 0;
    REQUIRE(size % WORD == 0, "words are of %d bytes each, which do not divide %zu", WORD, size);
    MPI_Aint end = (MPI_Aint)((size_t)slots * size);
    for (MPI_Aint at = 0; leads && at < end; at += WORD) {
        MPI_Fetch_and_op(&nothing, incoming + at, MPI_UINT64_T, peer, at, MPI_SUM, shown);
        MPI_Win_flush(peer, shown);
    }
    tell_follower();
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

/* Six numbers, none of which waits for another one: as much as a core can do at a time. */
static void count_up(size_t size, int slots) {
    (void)size;
    uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0;
    for (int step = 0; step < slots * STEPS; step++) {
        __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
        a++, b++, c++, d++, e++, f++;
    }
}

static const struct kind kinds[] = {
    {"size", 256 << 10, 128, bounce, BOTH_WAYS, 0, 0},
    {"rate", 8 << 20, 16 * WINDOW, stream, ONE_WAY, 0, 0},
    {"both", 4 << 20, 16 * WINDOW, cross, BOTH_WAYS, 0, 0},
    {"swap", 4 << 20, 1, cross, BOTH_WAYS, 0, 0},
    {"turns", 4 << 20, 1, cross, BOTH_WAYS, 0.010, 0},
    {"walks", 4 << 20, 1, cross, BOTH_WAYS, 0.0015, 1},
    {"tests", 4 << 20, 1, cross_by_tests, BOTH_WAYS, 0, 0},
    {"sum", 1 << 20, 64, sum, SUMS, 0, 0},
    {"everyone", 1 << 20, 64, from_everyone, FROM_RANKS, 0, 0},
    {"bcast", 1 << 20, 64, broadcast, FROM_ROOTS, 0, 0},
    {"put", 1 << 20, 64, put, ONE_WAY, 0, 0},
    {"get", 1 << 20, 64, get, WAY_BACK, 0, 0},
    {"puts", 4 << 20, 64, put_all, BOTH_WAYS, 0, 0},
    {"gets", 4 << 20, 64, get_all, BOTH_WAYS, 0, 0},
    {"fetch", 1 << 20, 64, fetch, WAY_BACK, 0, 0},
    {"line", 64 << 10, 128, hop, NONE, 0, 0},
    {"core", 64 << 10, 128, count_up, NONE, 0, 0},
};

/* What a kind needs before its first exchange. Every rank calls this. */
static void open_for(const struct kind *kind) {
    if (kind->exchange == hop && line == NULL) line = shared_line();
    int writes = kind->exchange == put || kind->exchange == put_all;
    int reads = kind->exchange == get || kind->exchange == get_all || kind->exchange == fetch;
    if (writes && received == MPI_WIN_NULL) open_window(incoming, &received);
    if (reads && shown == MPI_WIN_NULL) open_window(outgoing, &shown);
}

static void close_all(void) {
    close_window(&received);
    close_window(&shown);
}

#endif
