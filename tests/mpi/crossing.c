/* Two floods that cross: everybody blocks in sends of eager messages to everybody, receives are posted beforehand, with a
 * bounded number outstanding. With tiny windows each side owes the other credits at every moment: a transport that returns
 * them too late stops here for ever. Sizes go through every queue of a layout. */
#include "check.h"

enum { WINDOW = 16, ROUNDS = 3000, MOST = 12000 };

static int rank, ranks;

static size_t size_at(int round) {
    static const size_t sizes[] = {4, 100, 1000, 12000, 1, 2000, 60, 300};
    return sizes[round % 8];
}

static uint64_t seed_at(int from, int to, int round) { return seed_of((uint64_t)from, (uint64_t)to, 0, (uint64_t)round); }

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    unsigned char *in = memory((size_t)ranks * WINDOW * MOST), *out = memory(MOST);
    MPI_Request *requests = memory((size_t)ranks * WINDOW * sizeof *requests);
    for (int i = 0; i < ranks * WINDOW; i++) requests[i] = MPI_REQUEST_NULL;
    for (int round = 0; round < ROUNDS + WINDOW; round++) {
        for (int peer = 0; peer < ranks; peer++) {
            int slot = peer * WINDOW + round % WINDOW;
            unsigned char *buffer = in + (size_t)slot * MOST;
            if (peer == rank) continue;
            if (round >= WINDOW) {
                MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
                verify(buffer, size_at(round - WINDOW), seed_at(peer, rank, round - WINDOW), "crossing");
            }
            if (round < ROUNDS) MPI_Irecv(buffer, MOST, MPI_BYTE, peer, round, MPI_COMM_WORLD, &requests[slot]);
        }
        for (int peer = 0; peer < ranks && round < ROUNDS; peer++) {
            if (peer == rank) continue;
            fill(out, size_at(round), seed_at(rank, peer, round));
            MPI_Send(out, (int)size_at(round), MPI_BYTE, peer, round, MPI_COMM_WORLD);
        }
    }
    finish("crossing");
    return 0;
}
