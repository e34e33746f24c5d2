/* One rank is killed in a job that runs with ULFM: every survivor hears MPIX_ERR_PROC_FAILED, and they go on in a communicator
 * of their own, with checked traffic. */
#include "check.h"
#include <mpi-ext.h>
#include <signal.h>

enum { SIZE = 50000 };

static void ring(MPI_Comm comm) {
    static unsigned char out[SIZE], in[SIZE];
    int rank, ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    fill(out, SIZE, seed_of((uint64_t)rank, (uint64_t)ranks, 0, 0));
    MPI_Sendrecv(out, SIZE, MPI_BYTE, right, 1, in, SIZE, MPI_BYTE, left, 1, comm, MPI_STATUS_IGNORE);
    verify(in, SIZE, seed_of((uint64_t)left, (uint64_t)ranks, 0, 0), "ring");
}

int main(int argc, char **argv) {
    int rank, ranks, class, left;
    char word[8];
    MPI_Comm rest;
    start(&argc, &argv, &rank, &ranks);
    ring(MPI_COMM_WORLD);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == ranks - 1) raise(SIGKILL);
    MPI_Error_class(MPI_Recv(word, 8, MPI_BYTE, ranks - 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE), &class);
    REQUIRE(class == MPIX_ERR_PROC_FAILED, "a receive from a killed rank ended with class %d", class);
    REQUIRE(MPIX_Comm_shrink(MPI_COMM_WORLD, &rest) == MPI_SUCCESS, "MPIX_Comm_shrink failed");
    MPI_Comm_size(rest, &left);
    REQUIRE(left == ranks - 1, "%d ranks are left of %d", left, ranks);
    ring(rest);
    MPI_Comm_rank(rest, &rank);
    if (rank == 0) printf("PASS survivors\n");
    MPI_Comm_free(&rest);
    MPI_Finalize();
    return 0;
}
