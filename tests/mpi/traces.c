/* What a transport leaves in a process: threads, and mapped or open files whose path names softib or a plugin. One line each,
 * from rank 0, after a collective and a message to the neighbour. */
#include "check.h"
#include <dirent.h>
#include <unistd.h>

static int entries(const char *folder) {
    int count = 0;
    DIR *dir = opendir(folder);
    REQUIRE(dir != NULL, "cannot read %s", folder);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* How many mappings name `word`; with `say`, a line for each path. */
static int mapped(const char *word, int say) {
    char line[4096];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    REQUIRE(maps != NULL, "cannot read /proc/self/maps");
    while (fgets(line, sizeof line, maps)) {
        if (!strstr(line, word)) continue;
        if (say && strchr(line, '/')) printf("segment %s", strchr(line, '/'));
        count++;
    }
    fclose(maps);
    return count;
}

static int opened(const char *word) {
    char path[64], target[4096];
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        count += strstr(target, word) != NULL;
    }
    return count;
}

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("threads %d\n", entries("/proc/self/task"));
        printf("plugin mapped %d\n", mapped("mca_btl_oxib", 0) > 0);
        printf("segments mapped %d opened %d\n", mapped("softib-", 1), opened("softib-"));
    }
    finish("traces");
    return 0;
}
