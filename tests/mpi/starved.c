/* Memory that runs out after MPI_Init: the last rank may map only as many MiB more as the argument says (RLIMIT_AS), then every pair of ranks
 * connects and exchanges messages of all edge sizes. Rank 0 says so if all of them arrive. */
#include "check.h"
#include <sys/resource.h>
#include <unistd.h>

enum { LONGEST = 1048576 };

static void limit(rlim_t more) {
    struct rlimit now;
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    REQUIRE(statm != NULL && fscanf(statm, "%lu", &pages) == 1, "no /proc/self/statm");
    fclose(statm);
    getrlimit(RLIMIT_AS, &now);
    now.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;
    REQUIRE(setrlimit(RLIMIT_AS, &now) == 0, "no limit");
}

int main(int argc, char **argv) {
    int rank, ranks;
    static unsigned char out[LONGEST], in[LONGEST];
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(argc == 2, "usage: starved MEBIBYTES");
    if (rank == ranks - 1) limit((rlim_t)(atof(argv[1]) * 1048576));
    for (int step = 1; step < ranks; step++)
        for (int i = 0; i < EDGE_SIZES; i++) {
            int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks, size = edge_sizes[i];
            fill(out, (size_t)size, seed_of((uint64_t)rank, (uint64_t)to, 0, (uint64_t)i));
            MPI_Sendrecv(out, size, MPI_BYTE, to, 0, in, size, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            verify(in, (size_t)size, seed_of((uint64_t)from, (uint64_t)rank, 0, (uint64_t)i), "starved");
        }
    finish("starved");
    return 0;
}
