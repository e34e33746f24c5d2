/* Memory that comes and goes between transfers: blocks of malloc and mmap are sent from, received into, put from and
 * got into, and given back; others take their addresses. A registration that outlives its memory would move what was there before.
 *
 * The seed of the sizes and the order is printed; CHURN_SEED repeats it. Every byte is checked. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/mman.h>
#include <time.h>

enum { ROUNDS = 40, PLACES = 4, SMALLEST = 256 << 10, LARGEST = 4 << 20, ROOM = LARGEST + 4096 };

typedef enum { BY_MALLOC, BY_MMAP, AT_PLACE, REALLOCATED } Kind;

typedef struct {
    unsigned char *at;
    size_t size;
    Kind kind;
} Block;

static int rank, ranks;
static uint64_t state;
/* Addresses at which mappings are made again and again. */
static unsigned char *places[PLACES];
static int reused;

static size_t pick(size_t below) {
    state = mix(state);
    return (size_t)(state >> 11) % below;
}

static void *map(void *at, size_t size, int protection, int flags) {
    void *p = mmap(at, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    REQUIRE(p != MAP_FAILED, "mmap of %zu bytes at %p", size, at);
    return p;
}

/* A mapping at the address that the block of this number had before. */
static void *at_place(int number, size_t size) {
    if (places[number] != NULL)
        reused++;
    else
        places[number] = map(NULL, ROOM, PROT_NONE, 0);
    return map(places[number], size, PROT_READ | PROT_WRITE, MAP_FIXED);
}

/* Unmaps it, and keeps others away from the address; another thread that has been faster has it now. */
static void leave_place(unsigned char *at) {
    munmap(at, ROOM);
    void *again = mmap(at, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    for (int number = 0; again != at && number < PLACES; number++)
        if (places[number] == at) places[number] = NULL;
}

static Block take(int number, size_t size) {
    Block block = {NULL, size, (Kind)pick(4)};
    if (block.kind == BY_MMAP) block.at = map(NULL, size, PROT_READ | PROT_WRITE, 0);
    if (block.kind == AT_PLACE) block.at = at_place(number, size);
    if (block.kind == BY_MALLOC || block.kind == REALLOCATED) block.at = memory(size);
    if (block.kind == REALLOCATED) {
        block.at = realloc(block.at, size + pick(LARGEST));
        REQUIRE(block.at != NULL, "out of memory: realloc");
    }
    return block;
}

static void give_back(Block block) {
    if (block.kind == BY_MMAP) munmap(block.at, block.size);
    if (block.kind == AT_PLACE) leave_place(block.at);
    if (block.kind == BY_MALLOC || block.kind == REALLOCATED) free(block.at);
}

/* Every rank sends to its right and receives from its left, all sizes of a round agreed on by the common seed. */
static void messages(int round) {
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    size_t size = SMALLEST + pick(LARGEST - SMALLEST), offset = pick(3) * 8;
    Block out = take(0, size + 64), in = take(1, size + 64);
    /* Twice: what is kept of the first time is found the second time. */
    for (uint64_t when = 2 * (uint64_t)round; when < 2 * (uint64_t)round + 2; when++) {
        fill(out.at + offset, size, seed_of((uint64_t)rank, (uint64_t)right, size, when));
        memset(in.at, 0xa5, size + 64);
        MPI_Sendrecv(out.at + offset, (int)size, MPI_BYTE, right, 1, in.at + offset, (int)size, MPI_BYTE, left, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        verify(in.at + offset, size, seed_of((uint64_t)left, (uint64_t)rank, size, when), "message");
        REQUIRE(in.at[offset + size] == 0xa5, "round %d: the byte behind a receive of %zu was written", round, size);
    }
    give_back(in), give_back(out);
}

/* A window of fresh memory, put into by the left and got from by the right. */
static void one_sided(int round) {
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    size_t size = SMALLEST + pick(LARGEST / 2 - SMALLEST);
    Block window_memory = take(2, 2 * size), block = take(3, size);
    MPI_Win window;
    fill(window_memory.at, size, seed_of((uint64_t)rank, 7, size, (uint64_t)round));
    MPI_Win_create(window_memory.at, (MPI_Aint)(2 * size), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    fill(block.at, size, seed_of((uint64_t)rank, 8, size, (uint64_t)round));
    MPI_Win_fence(0, window);
    MPI_Put(block.at, (int)size, MPI_BYTE, right, (MPI_Aint)size, (int)size, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    verify(window_memory.at + size, size, seed_of((uint64_t)left, 8, size, (uint64_t)round), "put");
    give_back(block);
    block = take(3, size);
    memset(block.at, 0, size);
    MPI_Win_fence(0, window);
    MPI_Get(block.at, (int)size, MPI_BYTE, right, 0, (int)size, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    verify(block.at, size, seed_of((uint64_t)right, 7, size, (uint64_t)round), "get");
    MPI_Win_free(&window);
    give_back(block), give_back(window_memory);
}

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    const char *chosen = getenv("CHURN_SEED");
    uint64_t seed = chosen != NULL ? strtoull(chosen, NULL, 10) : (uint64_t)time(NULL);
    MPI_Bcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("CHURN_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    state = seed;
    for (int round = 0; round < ROUNDS; round++) {
        messages(round);
        if (round % 4 == 3) one_sided(round);
    }
    REQUIRE(reused > PLACES, "addresses were used again %d times only", reused);
    finish("churn");
    return 0;
}
