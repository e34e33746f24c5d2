/* Two more processes from a running job: parents and children, of different jobs, exchange checked messages both ways. */
#include "check.h"

enum { SIZE = 100000 };

static void exchange(MPI_Comm inter, int rank, int others, int child) {
    unsigned char *buffer = memory(SIZE);
    for (int peer = 0; peer < others; peer++) {
        fill(buffer, SIZE, seed_of((uint64_t)rank, (uint64_t)peer, (uint64_t)child, 0));
        if (child) MPI_Send(buffer, SIZE, MPI_BYTE, peer, 1, inter);
        else MPI_Recv(buffer, SIZE, MPI_BYTE, peer, 1, inter, MPI_STATUS_IGNORE);
        if (!child) verify(buffer, SIZE, seed_of((uint64_t)peer, (uint64_t)rank, 1, 0), "from a child");
    }
    for (int peer = 0; peer < others; peer++) {
        fill(buffer, SIZE, seed_of((uint64_t)rank, (uint64_t)peer, (uint64_t)child, 1));
        if (!child) MPI_Send(buffer, SIZE, MPI_BYTE, peer, 2, inter);
        else MPI_Recv(buffer, SIZE, MPI_BYTE, peer, 2, inter, MPI_STATUS_IGNORE);
        if (child) verify(buffer, SIZE, seed_of((uint64_t)peer, (uint64_t)rank, 0, 1), "from a parent");
    }
    free(buffer);
}

int main(int argc, char **argv) {
    int rank, ranks, others;
    MPI_Comm parent, inter;
    start(&argc, &argv, &rank, &ranks);
    MPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL) MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter, MPI_ERRCODES_IGNORE);
    else inter = parent;
    MPI_Comm_remote_size(inter, &others);
    exchange(inter, rank, others, parent != MPI_COMM_NULL);
    MPI_Comm_disconnect(&inter);
    if (parent == MPI_COMM_NULL && rank == 0) printf("PASS spawn\n");
    MPI_Finalize();
    return 0;
}
