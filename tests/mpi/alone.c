/* What MPI_Init has started in a process that sends no message: the names of its threads, from rank 0; and that
 * MPI_Finalize has nothing to wait for: no peer, no connection, no time-out. */
#include "check.h"
#include <dirent.h>

static const double SECONDS = 5;

static void name_threads(void) {
    DIR *dir = opendir("/proc/self/task");
    REQUIRE(dir != NULL, "cannot read /proc/self/task");
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file == NULL) continue;
        if (fscanf(file, "%31s", name) == 1) printf("thread %s\n", name);
        fclose(file);
    }
    closedir(dir);
}

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    if (rank == 0) name_threads();
    double begin = MPI_Wtime();
    MPI_Finalize();
    double took = MPI_Wtime() - begin;
    if (took > SECONDS) {
        fprintf(stderr, "FAIL rank %d: MPI_Finalize took %.1f s\n", rank, took);
        return 3;
    }
    if (rank == 0) printf("PASS alone\n");
    return 0;
}
