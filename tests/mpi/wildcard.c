/* MPI_ANY_SOURCE and MPI_ANY_TAG: nothing is lost, nothing comes twice, and messages of one sender come in their order. */
#include "check.h"

enum { MESSAGES = 1500, MOST = 9000 };

static size_t size_at(int from, int n) { return n % 50 == 49 ? MOST - (size_t)from : 8 + mix((uint64_t)n) % 300; }

static void send_to_first(int rank) {
    static unsigned char buffer[MOST];
    for (int n = 0; n < MESSAGES; n++) {
        size_t size = size_at(rank, n);
        fill(buffer, size, seed_of((uint64_t)rank, 0, 7, (uint64_t)n));
        MPI_Send(buffer, (int)size, MPI_BYTE, 0, n, MPI_COMM_WORLD);
    }
}

static void receive_from_all(int ranks) {
    static unsigned char buffer[MOST];
    int *next = calloc((size_t)ranks, sizeof *next);
    for (int i = 0; i < MESSAGES * (ranks - 1); i++) {
        MPI_Status status;
        int count;
        MPI_Recv(buffer, MOST, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        int from = status.MPI_SOURCE, n = next[from]++;
        REQUIRE(status.MPI_TAG == n, "message %d of rank %d came when %d was due", status.MPI_TAG, from, n);
        REQUIRE((size_t)count == size_at(from, n), "message %d of rank %d has %d bytes", n, from, count);
        verify(buffer, (size_t)count, seed_of((uint64_t)from, 0, 7, (uint64_t)n), "wildcard");
    }
    free(next);
}

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    if (rank == 0) receive_from_all(ranks);
    else send_to_first(rank);
    finish("wildcard");
    return 0;
}
