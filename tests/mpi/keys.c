/* An upper layer that registers whatever it gets: it is refused in time, so that messages still leave, more of them at once than
 * the transport has buffers for. */
#include "btl.h"

enum { MOST = 1 << 20, MESSAGES = 20000, SIZE = 1000 };

int main(int argc, char **argv) {
    int rank, size;
    start(&argc, &argv, &rank, &size);
    static char bytes[SIZE], got[SIZE];
    fill(bytes, SIZE, seed_of((uint64_t)rank, 0, 0, 0));
    struct btl *btl = module();
    void **handles = memory(MOST * sizeof *handles);
    int count = 0;
    while (count < MOST && (handles[count] = btl->register_mem(btl, NULL, bytes, SIZE, ANY_ACCESS)) != NULL) count++;
    REQUIRE(count > 1000 && count < MOST, "%d registrations", count);
    for (int i = 0; i < 1000; i++)
        REQUIRE(btl->register_mem(btl, NULL, bytes, SIZE, ANY_ACCESS) == NULL, "refused and granted by turns");
    MPI_Request *requests = memory(MESSAGES * sizeof *requests);
    int other = rank ^ 1;
    for (int i = 0; i < MESSAGES; i++) MPI_Isend(bytes, SIZE, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[i]);
    for (int i = 0; i < MESSAGES; i++) MPI_Recv(got, SIZE, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    verify(got, SIZE, seed_of((uint64_t)other, 0, 0, 0), "the last message");
    MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
    while (count > 0) btl->deregister_mem(btl, handles[--count]);
    handles[0] = btl->register_mem(btl, NULL, bytes, SIZE, ANY_ACCESS);
    REQUIRE(handles[0] != NULL, "refused although nothing is registered");
    btl->deregister_mem(btl, handles[0]);
    finish("keys");
    return 0;
}
