/* Probing: what MPI_Probe, MPI_Iprobe, MPI_Mprobe and MPI_Improbe announce is what is received next. */
#include "check.h"

enum { WAYS = 4, MOST = 200000 };
static const int sizes[] = {0, 3, 500, 4097, 30000, 200000};
static int rank, ranks;
static unsigned char buffer[MOST];

static void send_all(int peer) {
    for (int way = 0; way < WAYS; way++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            fill(buffer, (size_t)sizes[i], seed_of((uint64_t)rank, (uint64_t)way, i, 0));
            MPI_Send(buffer, sizes[i], MPI_BYTE, peer, way * 100 + (int)i, MPI_COMM_WORLD);
        }
}

static void announce(int way, int from, int tag, MPI_Message *message, MPI_Status *status) {
    int flag = 0;
    if (way == 0) MPI_Probe(from, tag, MPI_COMM_WORLD, status);
    else if (way == 1) while (!flag) MPI_Iprobe(from, tag, MPI_COMM_WORLD, &flag, status);
    else if (way == 2) MPI_Mprobe(from, MPI_ANY_TAG, MPI_COMM_WORLD, message, status);
    else while (!flag) MPI_Improbe(from, tag, MPI_COMM_WORLD, &flag, message, status);
}

static void receive_one(int from, int way, size_t i) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    int count, tag = way * 100 + (int)i;
    announce(way, from, tag, &message, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    REQUIRE(count == sizes[i] && status.MPI_TAG == tag, "announced: %d bytes, tag %d; due: %d bytes, tag %d", count,
            status.MPI_TAG, sizes[i], tag);
    memset(buffer, 0xa5, sizeof buffer);
    if (message == MPI_MESSAGE_NULL) MPI_Recv(buffer, count, MPI_BYTE, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else MPI_Mrecv(buffer, count, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    verify(buffer, (size_t)count, seed_of((uint64_t)from, (uint64_t)way, i, 0), "probe");
}

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    if (rank != 0) {
        send_all(0);
        finish("probe");
        return 0;
    }
    for (int from = 1; from < ranks; from++)
        for (int way = 0; way < WAYS; way++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) receive_one(from, way, i);
    finish("probe");
    return 0;
}
