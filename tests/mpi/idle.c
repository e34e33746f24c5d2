/* Nothing at all: a job that never sends starts and ends. */
#include "check.h"

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    if (rank == 0) printf("PASS idle\n");
    MPI_Finalize();
    return 0;
}
