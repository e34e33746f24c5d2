/* Ping-pong between two ranks, every payload checked, timing left alone by the checking.
 *
 * Arguments: milliseconds of timed exchange per size, then the sizes in bytes.
 *
 * One batch = K round trips, each with a buffer of its own:
 *
 *     rank 0                                rank 1
 *     go/stop  ---------------------------> receive it
 *     fill K payloads, poison K receives    the same
 *     receive it <------------------------- ready
 *     [clock] K times: send, receive        K times: receive, send      <- timed, nothing else in it
 *     [clock] verify K payloads             verify K payloads
 *
 * K shrinks as the size grows (256 KiB in flight at most, 128 at most), so small sizes stay in cache and the clock's own
 * cost is spread. Patterns depend on rank, size, batch and position: a stale or swapped payload is always seen.
 * Output of rank 0, a line a size: `size BYTES batches N median_us X min_us Y` (half round trips; medians and minima
 * are over batches). */
#include "check.h"

enum { MOST_SLOTS = 128, IN_FLIGHT = 256 * 1024, MOST_BATCHES = 20000, FEWEST_BATCHES = 5, GUARD = 64 };

static int rank;
static unsigned char *outgoing, *incoming;
static double took[MOST_BATCHES];

static int slots_for(size_t size) {
    size_t slots = IN_FLIGHT / (size ? size : 1);
    return slots < 1 ? 1 : slots > MOST_SLOTS ? MOST_SLOTS : (int)slots;
}

static uint64_t seed_for(int from, size_t size, int batch, int slot) {
    return seed_of((uint64_t)from, size, (uint64_t)batch, (uint64_t)slot);
}

static void prepare(size_t size, int slots, int batch) {
    for (int s = 0; s < slots; s++) fill(outgoing + (size_t)s * size, size, seed_for(rank, size, batch, s));
    memset(incoming, 0xa5, (size_t)slots * size + GUARD);
}

static void inspect(size_t size, int slots, int batch) {
    for (int s = 0; s < slots; s++) verify(incoming + (size_t)s * size, size, seed_for(1 - rank, size, batch, s), "ping-pong");
    for (int i = 0; i < GUARD; i++)
        REQUIRE(incoming[(size_t)slots * size + i] == 0xa5, "%d bytes behind a %zu-byte receive were written", i + 1, size);
}

static void bounce_first(size_t size, int slots) {
    for (int s = 0; s < slots; s++) {
        MPI_Send(outgoing + (size_t)s * size, (int)size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(incoming + (size_t)s * size, (int)size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static void bounce_second(size_t size, int slots) {
    for (int s = 0; s < slots; s++) {
        MPI_Recv(incoming + (size_t)s * size, (int)size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(outgoing + (size_t)s * size, (int)size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

/* One batch on rank 0: seconds of the timed part. */
static double lead(size_t size, int slots, int batch) {
    int go = 1;
    MPI_Send(&go, 1, MPI_INT, 1, 2, MPI_COMM_WORLD);
    prepare(size, slots, batch);
    MPI_Recv(NULL, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    double begin = MPI_Wtime();
    bounce_first(size, slots);
    double end = MPI_Wtime();
    inspect(size, slots, batch);
    return end - begin;
}

static void follow(size_t size, int slots) {
    for (int batch = 0;; batch++) {
        int go = 0;
        MPI_Recv(&go, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (!go) return;
        prepare(size, slots, batch);
        MPI_Send(NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
        bounce_second(size, slots);
        inspect(size, slots, batch);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Two batches warm up; then batches until the time is used, of which the timed part is what counts. */
static void measure(size_t size, double seconds) {
    int slots = slots_for(size), batches = 0, stop = 0;
    double used = 0, wall = MPI_Wtime();
    lead(size, slots, 0);
    lead(size, slots, 1);
    while (batches < MOST_BATCHES && (batches < FEWEST_BATCHES || (used < seconds && MPI_Wtime() - wall < 10 * seconds))) {
        took[batches] = lead(size, slots, batches + 2) / (2.0 * slots);
        used += took[batches++] * 2.0 * slots;
    }
    MPI_Send(&stop, 1, MPI_INT, 1, 2, MPI_COMM_WORLD);
    qsort(took, (size_t)batches, sizeof *took, ascending);
    printf("size %zu batches %d median_us %.4f min_us %.4f\n", size, batches, took[batches / 2] * 1e6, took[0] * 1e6);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int ranks;
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(ranks == 2, "ping-pong takes two ranks, not %d", ranks);
    REQUIRE(argc > 2, "usage: pingpong MILLISECONDS SIZE...");
    size_t largest = IN_FLIGHT;
    for (int i = 2; i < argc; i++)
        if (strtoull(argv[i], NULL, 10) > largest) largest = strtoull(argv[i], NULL, 10);
    REQUIRE(largest <= 1u << 30, "a size of %zu bytes is more than 1 GiB", largest);
    outgoing = memory(largest + GUARD);
    incoming = memory(largest + GUARD);
    for (int i = 2; i < argc; i++) {
        size_t size = strtoull(argv[i], NULL, 10);
        if (rank == 0) measure(size, atof(argv[1]) / 1000);
        else follow(size, slots_for(size));
    }
    finish("pingpong");
    return 0;
}
