/* A get may be over, and called back for, before btl_get returns. A callback that begins the next one is not entered again from there, without end;
 * and a program that gets memory until it changes, and does nothing else, answers messages meanwhile.
 *
 * Rank 0 gets from rank 1's memory, which it maps, too, if the argument is `mapped`: for a while, until the device knows which way takes less time. */
#define _GNU_SOURCE
#include "btl.h"
#include <sys/mman.h>
#include <unistd.h>

/* One of POSTED gets is not over within its call, whatever the others are. */
enum { SIZE = 16384, FIRST = 5000, POSTED = 16, NESTED = 200000, CHANGES = 300 };

static struct btl *btl;
static void *far;
static struct window window;
static void *handle;
static uint64_t near[SIZE / sizeof(uint64_t)];
static int begun, over, behind, depth, deepest;

static void get(rdma_done *done) {
    int status = btl->get(btl, far, near, window.address, handle, window.key, SIZE, 0, NO_ORDER, done, NULL, NULL);
    REQUIRE(status == 0, "get: %d", status);
}

static void count(void *b, void *e, void *l, void *h, void *context, void *d, int status) {
    (void)b, (void)e, (void)l, (void)h, (void)context, (void)d;
    REQUIRE(status == 0, "the get ended with %d", status);
    over++;
}

static void next(void *b, void *e, void *l, void *h, void *context, void *d, int status) {
    count(b, e, l, h, context, d, status);
    if (++depth > deepest) deepest = depth;
    if (begun++ < NESTED) get(next);
    depth--;
}

static void get_and_flush(void) {
    int before = over;
    get(count);
    behind += over == before;
    btl->flush(btl, far);
    REQUIRE(over == before + 1, "flush returned before the callback");
}

static void begin_in_callbacks(void) {
    over = 0;
    get(next);
    while (over <= NESTED) progress();
    REQUIRE(over == NESTED + 1 && deepest <= 2, "%d of %d gets are over, callbacks were %d deep", over, NESTED + 1, deepest);
}

static void get_until_it_changes(void) {
    for (uint64_t change = 1; change <= CHANGES; change++) {
        MPI_Request request;
        MPI_Irecv(NULL, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD, &request);
        do get_and_flush();
        while (near[0] != change);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Send(NULL, 0, MPI_BYTE, 1, 4, MPI_COMM_WORLD);
    }
}

static void getter(void) {
    MPI_Recv(&window, sizeof window, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    far = endpoint_of(btl, 1);
    handle = btl->register_mem(btl, NULL, near, sizeof near, ANY_ACCESS);
    for (int i = 0; i < FIRST; i++) get_and_flush();
    REQUIRE(behind >= FIRST / POSTED, "%d of %d gets were not over within their call, and waited for by looking around", behind, FIRST);
    begin_in_callbacks();
    MPI_Send(NULL, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD);
    get_until_it_changes();
    btl->deregister_mem(btl, handle);
}

/* MPI_Ssend ends when the other one has received. */
static void owner(int mapped) {
    int file = memfd_create("within", 0);
    REQUIRE(file >= 0 && ftruncate(file, SIZE) == 0, "no memory");
    int kind = mapped ? MAP_SHARED : MAP_PRIVATE;
    uint64_t *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, kind, file, 0);
    REQUIRE(memory != MAP_FAILED, "no memory");
    window = expose(btl, memory, SIZE);
    MPI_Send(&window, sizeof window, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    MPI_Recv(NULL, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (uint64_t change = 1; change <= CHANGES; change++) {
        MPI_Ssend(NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
        __atomic_store_n(memory, change, __ATOMIC_RELEASE);
        MPI_Recv(NULL, 0, MPI_BYTE, 0, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv) {
    int rank, size;
    start(&argc, &argv, &rank, &size);
    REQUIRE(size == 2, "2 ranks");
    btl = module();
    if (rank == 0) getter();
    if (rank == 1) owner(argc > 1 && strcmp(argv[1], "mapped") == 0);
    finish("within");
    return 0;
}
