/* A thread maps, empties and unmaps memory all the time: "before" MPI_Init already, or from "after" it on, and in both cases until
 * MPI_Finalize has returned. Meanwhile long messages go there and back. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { ROUNDS = 20, SIZE = 300000, MAPPED = 65536 };

static atomic_int over;

static void *map(void *nothing) {
    (void)nothing;
    while (!atomic_load(&over)) {
        volatile char *page = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(page != MAP_FAILED, "no memory");
        page[0] = 1;
        madvise((void *)page, MAPPED, MADV_DONTNEED);
        munmap((void *)page, MAPPED);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int rank, ranks;
    pthread_t thread;
    int before = argc > 1 && strcmp(argv[1], "before") == 0;
    if (before) pthread_create(&thread, NULL, map, NULL);
    start(&argc, &argv, &rank, &ranks);
    if (!before) pthread_create(&thread, NULL, map, NULL);
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *out = memory(SIZE), *in = memory(SIZE);
        fill(out, SIZE, seed_of((uint64_t)rank, (uint64_t)next, 0, (uint64_t)round));
        MPI_Sendrecv(out, SIZE, MPI_BYTE, next, 0, in, SIZE, MPI_BYTE, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(in, SIZE, seed_of((uint64_t)previous, (uint64_t)rank, 0, (uint64_t)round), "a round");
        free(out);
        free(in);
    }
    finish("mapping");
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
    return 0;
}
