/* Communicators: duplicated, split, created from groups, between groups and merged; the same tags on each never mix. */
#include "check.h"

static int world_rank, world_size;

/* Around the ring of `comm`, with data that knows which communicator it belongs to. */
static void ring(MPI_Comm comm, int which) {
    int rank, size;
    unsigned char out[3000], in[3000];
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    fill(out, sizeof out, seed_of((uint64_t)rank, (uint64_t)size, (uint64_t)which, 1));
    MPI_Sendrecv(out, sizeof out, MPI_BYTE, right, 9, in, sizeof in, MPI_BYTE, left, 9, comm, MPI_STATUS_IGNORE);
    verify(in, sizeof in, seed_of((uint64_t)left, (uint64_t)size, (uint64_t)which, 1), "ring");
}

/* Sent on both before either is received, received in the other order. */
static void unmixed(MPI_Comm one, MPI_Comm two) {
    int rank, size, values[2];
    MPI_Comm_rank(one, &rank);
    MPI_Comm_size(one, &size);
    int right = (rank + 1) % size, left = (rank + size - 1) % size, a = 1000 + rank, b = 2000 + rank;
    MPI_Request requests[2];
    MPI_Isend(&a, 1, MPI_INT, right, 5, one, &requests[0]);
    MPI_Isend(&b, 1, MPI_INT, right, 5, two, &requests[1]);
    MPI_Recv(&values[1], 1, MPI_INT, left, 5, two, MPI_STATUS_IGNORE);
    MPI_Recv(&values[0], 1, MPI_INT, left, 5, one, MPI_STATUS_IGNORE);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    REQUIRE(values[0] == 1000 + left && values[1] == 2000 + left, "got %d and %d from %d", values[0], values[1], left);
}

static void between_groups(void) {
    MPI_Comm half, inter, merged;
    int upper = world_rank >= world_size / 2, there = upper ? 0 : world_size / 2, sum = 0, one = 1, size;
    MPI_Comm_split(MPI_COMM_WORLD, upper, world_rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, there, 77, &inter);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, inter);
    MPI_Comm_remote_size(inter, &size);
    REQUIRE(sum == size, "the other group sums to %d, not %d", sum, size);
    MPI_Intercomm_merge(inter, upper, &merged);
    ring(merged, 50);
    MPI_Comm_free(&merged), MPI_Comm_free(&inter), MPI_Comm_free(&half);
}

int main(int argc, char **argv) {
    MPI_Comm copy, part, reversed;
    start(&argc, &argv, &world_rank, &world_size);
    for (int i = 0; i < 20; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &copy);
        ring(copy, i);
        unmixed(MPI_COMM_WORLD, copy);
        MPI_Comm_split(copy, world_rank % 2, -world_rank, &part);
        ring(part, 100 + i + 1000 * (world_rank % 2));
        MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &reversed);
        ring(reversed, 200 + i);
        MPI_Comm_free(&part), MPI_Comm_free(&reversed), MPI_Comm_free(&copy);
    }
    between_groups();
    finish("communicators");
    return 0;
}
