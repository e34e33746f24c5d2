/* A seeded storm: every rank knows from the seed which messages it gets, from which rank, of which size, and receives them in an
 * order of its own, with any kind of receive. 600 messages a pair in waves of 60; sizes from 0 to 300 000, mostly small. */
#include "check.h"

enum { WAVES = 10, PER_WAVE = 60, MOST = 300000 };

static int rank, ranks;

static size_t size_of(int from, int to, int wave, int n) {
    uint64_t r = seed_of((uint64_t)from, (uint64_t)to, (uint64_t)wave, (uint64_t)n);
    switch (r % 16) {
    case 0: return mix(r) % MOST;
    case 1: case 2: return mix(r) % (RENDEZVOUS + 10000);
    default: return mix(r) % 600;
    }
}

static uint64_t content(int from, int to, int wave, int n) {
    return seed_of((uint64_t)from + 100, (uint64_t)to, (uint64_t)wave, (uint64_t)n);
}

/* A permutation of 0..PER_WAVE-1 that depends on receiver, sender and wave. */
static void shuffle(int *order, uint64_t seed) {
    for (int i = 0; i < PER_WAVE; i++) order[i] = i;
    for (int i = PER_WAVE - 1; i > 0; i--) {
        int j = (int)(mix(seed + (uint64_t)i) % (uint64_t)(i + 1)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

static void wave(int number, MPI_Request *sends, unsigned char **out, unsigned char *in) {
    int posted = 0, order[PER_WAVE];
    for (int n = 0; n < PER_WAVE; n++)
        for (int to = 0; to < ranks; to++) {
            size_t size = size_of(rank, to, number, n);
            out[posted] = memory(size);
            fill(out[posted], size, content(rank, to, number, n));
            MPI_Isend(out[posted], (int)size, MPI_BYTE, to, n, MPI_COMM_WORLD, &sends[posted]);
            posted++;
        }
    for (int from = 0; from < ranks; from++) {
        shuffle(order, seed_of((uint64_t)rank, (uint64_t)from, (uint64_t)number, 0));
        for (int i = 0; i < PER_WAVE; i++) {
            MPI_Status status;
            int count, n = order[i];
            MPI_Recv(in, MOST, MPI_BYTE, from, n, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &count);
            REQUIRE((size_t)count == size_of(from, rank, number, n), "wave %d message %d from %d has %d bytes", number, n, from, count);
            verify(in, (size_t)count, content(from, rank, number, n), "random");
        }
    }
    MPI_Waitall(posted, sends, MPI_STATUSES_IGNORE);
    for (int i = 0; i < posted; i++) free(out[i]);
}

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    int most = PER_WAVE * ranks;
    MPI_Request *sends = memory((size_t)most * sizeof *sends);
    unsigned char **out = memory((size_t)most * sizeof *out), *in = memory(MOST);
    for (int number = 0; number < WAVES; number++) wave(number, sends, out, in);
    finish("random");
    return 0;
}
