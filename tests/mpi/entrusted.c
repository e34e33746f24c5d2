/* A rank that sends more than the windows hold to ranks that are not in MPI, and then waits outside of MPI until they have got
 * all: what MPI_Send has taken leaves without its sender.
 *
 *     rank 0    small and middle messages ->, sigwait          large, scattered message ->, sigwait
 *     others    sleep, receive -> rank 1 -> SIGUSR1            receive -> rank 1 -> SIGUSR1 */
#include "check.h"

#include <signal.h>
#include <unistd.h>

enum { SMALL = 300, MIDDLE = 40, MIDDLE_LENGTH = 2000, BLOCK = 24, BLOCKS = 40000 };

static unsigned char middle[MIDDLE_LENGTH], blocks[2 * BLOCK * BLOCKS], received[BLOCK * BLOCKS];

/* Rank 1 hears that each rank has got all, and wakes rank 0. */
static void tell(int rank, int ranks, pid_t sender) {
    if (rank != 1) {
        MPI_Send(NULL, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD);
        return;
    }
    for (int from = 2; from < ranks; from++) MPI_Recv(NULL, 0, MPI_BYTE, from, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    REQUIRE(kill(sender, SIGUSR1) == 0, "no process %ld", (long)sender);
}

static void send_many(int ranks) {
    for (int to = 1; to < ranks; to++) {
        for (int i = 0; i < SMALL; i++) {
            uint64_t value = seed_of(0, (uint64_t)to, 0, (uint64_t)i);
            MPI_Send(&value, sizeof value, MPI_BYTE, to, 0, MPI_COMM_WORLD);
        }
        for (int i = 0; i < MIDDLE; i++) {
            fill(middle, MIDDLE_LENGTH, seed_of(0, (uint64_t)to, 1, (uint64_t)i));
            MPI_Send(middle, MIDDLE_LENGTH, MPI_BYTE, to, 1, MPI_COMM_WORLD);
        }
    }
}

static void receive_many(int rank) {
    usleep(200000);
    for (int i = 0; i < SMALL; i++) {
        uint64_t value;
        MPI_Recv(&value, sizeof value, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        REQUIRE(value == seed_of(0, (uint64_t)rank, 0, (uint64_t)i), "small message %d", i);
    }
    for (int i = 0; i < MIDDLE; i++) {
        MPI_Recv(middle, MIDDLE_LENGTH, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(middle, MIDDLE_LENGTH, seed_of(0, (uint64_t)rank, 1, (uint64_t)i), "a middle message");
    }
}

/* Every other block of memory: it goes in fragments, which the sender packs. */
static void send_scattered(int ranks) {
    MPI_Datatype every_other;
    MPI_Request requests[64];
    MPI_Type_vector(BLOCKS, BLOCK, 2 * BLOCK, MPI_BYTE, &every_other);
    MPI_Type_commit(&every_other);
    fill(blocks, sizeof blocks, seed_of(0, 0, 2, 0));
    for (int to = 1; to < ranks; to++) MPI_Isend(blocks, 1, every_other, to, 3, MPI_COMM_WORLD, &requests[to - 1]);
    MPI_Waitall(ranks - 1, requests, MPI_STATUSES_IGNORE);
    MPI_Type_free(&every_other);
}

static void receive_scattered(void) {
    MPI_Recv(received, sizeof received, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    fill(blocks, sizeof blocks, seed_of(0, 0, 2, 0));
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(memcmp(received + i * BLOCK, blocks + 2 * i * BLOCK, BLOCK) == 0, "block %d", i);
}

static void be_woken(const sigset_t *wanted) {
    int found;
    REQUIRE(sigwait(wanted, &found) == 0 && found == SIGUSR1, "sigwait");
}

int main(int argc, char **argv) {
    int rank, ranks;
    long sender = (long)getpid();
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    REQUIRE(sigprocmask(SIG_BLOCK, &wanted, NULL) == 0, "sigprocmask"); /* in every thread that MPI starts, too */
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(ranks <= 64, "at most 64 ranks");
    MPI_Bcast(&sender, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        send_many(ranks);
        be_woken(&wanted);
        send_scattered(ranks);
        be_woken(&wanted);
    } else {
        receive_many(rank);
        tell(rank, ranks, (pid_t)sender);
        receive_scattered();
        tell(rank, ranks, (pid_t)sender);
    }
    finish("entrusted");
    return 0;
}
