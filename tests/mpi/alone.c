/* What MPI_Init has started in a process that sends no message: the names of its threads, from rank 0, once there is one of the name that
 * is given, if any; and that MPI_Finalize has nothing to wait for: no peer, no connection, no time-out. */
#include "check.h"
#include <dirent.h>
#include <sched.h>

static const double SECONDS = 5;

/* Whether a thread of this process has this name; tells the names of all, if asked to. */
static int has_thread(const char *awaited, int tell) {
    int found = 0;
    DIR *dir = opendir("/proc/self/task");
    REQUIRE(dir != NULL, "cannot read /proc/self/task");
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file == NULL) continue;
        if (fscanf(file, "%31s", name) == 1 && tell) printf("thread %s\n", name);
        found |= strcmp(name, awaited) == 0;
        fclose(file);
    }
    closedir(dir);
    return found;
}

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    /* A thread gives itself its name when it first runs, which may be later than MPI_Init. */
    while (rank == 0 && argc > 1 && !has_thread(argv[1], 0)) sched_yield();
    if (rank == 0) has_thread("", 1);
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
