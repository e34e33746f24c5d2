/* The send modes. A synchronous send may not complete before its receive is posted: the receiver answers that it has not
 * posted yet, and at that moment the request must still be open. Buffered sends return at once; ready sends find a receive. */
#include "check.h"

enum { SIZES = 6 };
static const int sizes[SIZES] = {0, 1, 200, 5000, 70000, 600000};
static int rank, peer;

static uint64_t seed(int from, int size, int mode) { return seed_of((uint64_t)from, 0, (uint64_t)size, (uint64_t)mode); }

static void synchronous(int size, unsigned char *buffer) {
    if (rank % 2 == 0) {
        MPI_Request request;
        int done = 0;
        fill(buffer, (size_t)size, seed(rank, size, 1));
        MPI_Issend(buffer, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &request);
        MPI_Recv(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        REQUIRE(!done, "a synchronous send of %d bytes completed before its receive was posted", size);
        MPI_Send(NULL, 0, MPI_BYTE, peer, 3, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
        MPI_Recv(NULL, 0, MPI_BYTE, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Recv(buffer, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(buffer, (size_t)size, seed(peer, size, 1), "ssend");
    }
}

static void buffered(int size, unsigned char *buffer) {
    int room = size + MPI_BSEND_OVERHEAD + 64;
    void *attached = memory((size_t)room);
    MPI_Buffer_attach(attached, room);
    fill(buffer, (size_t)size, seed(rank, size, 2));
    MPI_Bsend(buffer, size, MPI_BYTE, peer, 4, MPI_COMM_WORLD);
    memset(buffer, 0, (size_t)size);
    MPI_Recv(buffer, size, MPI_BYTE, peer, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    verify(buffer, (size_t)size, seed(peer, size, 2), "bsend");
    MPI_Buffer_detach(&attached, &room);
    free(attached);
}

static void ready(int size, unsigned char *buffer) {
    MPI_Request request;
    unsigned char *in = memory((size_t)size);
    MPI_Irecv(in, size, MPI_BYTE, peer, 5, MPI_COMM_WORLD, &request);
    MPI_Barrier(MPI_COMM_WORLD);
    fill(buffer, (size_t)size, seed(rank, size, 3));
    MPI_Rsend(buffer, size, MPI_BYTE, peer, 5, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    verify(in, (size_t)size, seed(peer, size, 3), "rsend");
    free(in);
}

int main(int argc, char **argv) {
    int ranks;
    start(&argc, &argv, &rank, &ranks);
    peer = rank ^ 1;
    unsigned char *buffer = memory(600000);
    for (int i = 0; i < SIZES; i++) {
        if (peer >= ranks) {
            MPI_Barrier(MPI_COMM_WORLD);
            continue;
        }
        synchronous(sizes[i], buffer);
        buffered(sizes[i], buffer);
        ready(sizes[i], buffer);
    }
    finish("modes");
    return 0;
}
