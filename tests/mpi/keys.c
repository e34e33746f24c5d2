/* An upper layer that registers whatever it gets: it is refused in time, so that messages still leave, more of them at once than
 * the transport has buffers for. */
#include "btl.h"

#include <sys/mman.h>

enum { PAGE = 4096, MOST = 1 << 20, MESSAGES = 20000, SIZE = 1000 };

int main(int argc, char **argv) {
    int rank, size;
    start(&argc, &argv, &rank, &size);
    static char bytes[SIZE], got[SIZE];
    fill(bytes, SIZE, seed_of((uint64_t)rank, 0, 0, 0));
    struct btl *btl = module();
    void **handles = memory(MOST * sizeof *handles);
    /* Pages of their own, which no registration that is there already covers. */
    char *pages = mmap(NULL, (size_t)PAGE * MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(pages != MAP_FAILED, "no address space");
    int count = 0;
    while (count < MOST && (handles[count] = btl->register_mem(btl, NULL, pages + (size_t)PAGE * count, SIZE, ANY_ACCESS)) != NULL)
        count++;
    REQUIRE(count > 1000 && count < MOST, "%d registrations", count);
    void *again = btl->register_mem(btl, NULL, pages + PAGE + 8, SIZE, ANY_ACCESS);
    REQUIRE(again == handles[1], "memory that is registered already is refused, or registered once more");
    btl->deregister_mem(btl, again);
    for (int i = 0; i < 1000; i++)
        REQUIRE(btl->register_mem(btl, NULL, bytes, SIZE, ANY_ACCESS) == NULL, "refused and granted by turns");
    MPI_Request *requests = memory(MESSAGES * sizeof *requests);
    int other = rank ^ 1;
    for (int i = 0; i < MESSAGES; i++) MPI_Isend(bytes, SIZE, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[i]);
    for (int i = 0; i < MESSAGES; i++) MPI_Recv(got, SIZE, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    verify(got, SIZE, seed_of((uint64_t)other, 0, 0, 0), "the last message");
    MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
    for (int i = count; i > 0; i--) btl->deregister_mem(btl, handles[i - 1]);
    /* What is kept of the first ones makes room for as many others. */
    for (int i = 0; i < count; i++)
        REQUIRE((handles[i] = btl->register_mem(btl, NULL, pages + (size_t)PAGE * (MOST / 2 + i), SIZE, ANY_ACCESS)) != NULL,
                "refused for what is only kept: %d of %d", i, count);
    while (count > 0) btl->deregister_mem(btl, handles[--count]);
    handles[0] = btl->register_mem(btl, NULL, bytes, SIZE, ANY_ACCESS);
    REQUIRE(handles[0] != NULL, "refused although nothing is registered");
    btl->deregister_mem(btl, handles[0]);
    finish("keys");
    return 0;
}
