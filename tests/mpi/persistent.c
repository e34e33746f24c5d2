/* Persistent requests around a ring, started many times over with fresh data, completed in every way MPI offers. */
#include "check.h"

enum { ROUNDS = 200, LANES = 4 };
static const int sizes[LANES] = {16, 1000, 9000, 150000};

static void complete(MPI_Request *requests, int way) {
    int index, count, done = 0, indices[2 * LANES];
    if (way == 0) MPI_Waitall(2 * LANES, requests, MPI_STATUSES_IGNORE);
    else if (way == 1) while (!done) MPI_Testall(2 * LANES, requests, &done, MPI_STATUSES_IGNORE);
    else if (way == 2) for (int i = 0; i < 2 * LANES; i++) MPI_Waitany(2 * LANES, requests, &index, MPI_STATUS_IGNORE);
    else
        for (; done < 2 * LANES; done += count) MPI_Waitsome(2 * LANES, requests, &count, indices, MPI_STATUSES_IGNORE);
}

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    unsigned char *out[LANES], *in[LANES];
    MPI_Request requests[2 * LANES];
    for (int lane = 0; lane < LANES; lane++) {
        out[lane] = memory((size_t)sizes[lane]);
        in[lane] = memory((size_t)sizes[lane]);
        MPI_Recv_init(in[lane], sizes[lane], MPI_BYTE, left, lane, MPI_COMM_WORLD, &requests[lane]);
        MPI_Send_init(out[lane], sizes[lane], MPI_BYTE, right, lane, MPI_COMM_WORLD, &requests[LANES + lane]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int lane = 0; lane < LANES; lane++)
            fill(out[lane], (size_t)sizes[lane], seed_of((uint64_t)rank, (uint64_t)right, (uint64_t)lane, (uint64_t)round));
        MPI_Startall(2 * LANES, requests);
        complete(requests, round % 4);
        for (int lane = 0; lane < LANES; lane++)
            verify(in[lane], (size_t)sizes[lane], seed_of((uint64_t)left, (uint64_t)rank, (uint64_t)lane, (uint64_t)round),
                   "persistent");
    }
    for (int i = 0; i < 2 * LANES; i++) MPI_Request_free(&requests[i]);
    finish("persistent");
    return 0;
}
