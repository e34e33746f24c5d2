/* Unexpected messages: every rank sends thousands to every other before any rank receives one, small and large mixed.
 * Receives are posted against the order of sending (last tag first), and per tag the order of sending must hold. */
#include "check.h"

enum { TAGS = 8, PER_TAG = 250, LARGE_EVERY = 97 };

static int rank, ranks;

static size_t size_of(int tag, int n) {
    if (n % LARGE_EVERY == LARGE_EVERY - 1) return 40000 + (size_t)tag;
    return mix((uint64_t)(tag * PER_TAG + n)) % 1500;
}

static void send_all(int peer, MPI_Request *requests, unsigned char **buffers) {
    for (int n = 0; n < PER_TAG; n++)
        for (int tag = 0; tag < TAGS; tag++) {
            int at = n * TAGS + tag;
            size_t size = size_of(tag, n);
            buffers[at] = memory(size);
            fill(buffers[at], size, seed_of((uint64_t)rank, (uint64_t)peer, (uint64_t)tag, (uint64_t)n));
            MPI_Isend(buffers[at], (int)size, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &requests[at]);
        }
}

static void receive_all(int peer) {
    static unsigned char buffer[65536];
    for (int tag = TAGS - 1; tag >= 0; tag--)
        for (int n = 0; n < PER_TAG; n++) {
            MPI_Status status;
            int count;
            MPI_Recv(buffer, sizeof buffer, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &count);
            REQUIRE((size_t)count == size_of(tag, n), "tag %d message %d from %d has %d bytes, not %zu", tag, n, peer, count,
                    size_of(tag, n));
            verify(buffer, (size_t)count, seed_of((uint64_t)peer, (uint64_t)rank, (uint64_t)tag, (uint64_t)n), "flood");
        }
}

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    size_t each = TAGS * PER_TAG, all = each * (size_t)ranks;
    MPI_Request *requests = memory(all * sizeof *requests);
    unsigned char **buffers = calloc(all, sizeof *buffers);
    for (size_t i = 0; i < all; i++) requests[i] = MPI_REQUEST_NULL;
    for (int peer = 0; peer < ranks; peer++)
        if (peer != rank) send_all(peer, requests + each * (size_t)peer, buffers + each * (size_t)peer);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int peer = ranks - 1; peer >= 0; peer--)
        if (peer != rank) receive_all(peer);
    MPI_Waitall((int)all, requests, MPI_STATUSES_IGNORE);
    for (size_t i = 0; i < all; i++) free(buffers[i]);
    finish("flood");
    return 0;
}
