/* MPI sessions (MPI 4): the library is started and ended several times in one process, by sessions alone and two at once,
 * each time with a communicator over all processes and checked traffic, and at last by MPI_Init, too.
 *
 * The processes hold PMIx, which counts its users, open from the first life on, and meet between two lives, by files in TMPDIR. The PMIx
 * server of Open MPI 5.0.7 takes a process whose connection closes out of the fences that are under way, whether or not it is about to
 * come again (openpmix issues 3931 and 4113, mended in 2026): its peers go on without it, and it waits in its next fence for ever, over
 * any transport. It also makes this a hard test of addresses: what PMIx keeps of the lives before stays in every process. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <unistd.h>

enum { ROUNDS = 3, SIZE = 200000 };

static void ring(MPI_Comm comm, int round) {
    int rank, ranks;
    unsigned char *out = memory(SIZE), *in = memory(SIZE);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (int size = 1; size <= SIZE; size *= 7) {
        fill(out, (size_t)size, seed_of((uint64_t)rank, (uint64_t)size, (uint64_t)round, 0));
        MPI_Sendrecv(out, size, MPI_BYTE, right, 1, in, size, MPI_BYTE, left, 1, comm, MPI_STATUS_IGNORE);
        verify(in, (size_t)size, seed_of((uint64_t)left, (uint64_t)size, (uint64_t)round, 0), "ring");
    }
    free(out), free(in);
}

/* PMIx_Init(NULL, NULL, 0) and PMIx_Finalize(NULL, 0) of the PMIx that Open MPI uses; its headers are not installed with Open MPI's. */
static void hold_pmix(int yes) {
    int (*init)(void *, void *, size_t) = (int (*)(void *, void *, size_t))dlsym(RTLD_DEFAULT, "PMIx_Init");
    int (*finalize)(void *, size_t) = (int (*)(void *, size_t))dlsym(RTLD_DEFAULT, "PMIx_Finalize");
    REQUIRE(init != NULL && finalize != NULL, "this Open MPI does not use PMIx");
    REQUIRE((yes ? init(NULL, NULL, 0) : finalize(NULL, 0)) == 0, "PMIx cannot be held open");
}

/* Waits until all have come here. By files in TMPDIR: there is no MPI at this point. */
static void meet(int round, int rank, int ranks) {
    char path[4096];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/sessions-%d-%d", folder ? folder : "/tmp", round, rank);
    FILE *mark = fopen(path, "w");
    REQUIRE(mark != NULL, "cannot write %s", path);
    fclose(mark);
    for (int other = 0; other < ranks; other++) {
        snprintf(path, sizeof path, "%s/sessions-%d-%d", folder ? folder : "/tmp", round, other);
        while (access(path, F_OK) != 0) usleep(1000);
    }
}

static MPI_Session open_session(MPI_Comm *comm, const char *tag) {
    MPI_Session session;
    MPI_Group group;
    REQUIRE(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session) == MPI_SUCCESS, "no session");
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    REQUIRE(MPI_Comm_create_from_group(group, tag, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, comm) == MPI_SUCCESS, "no communicator");
    MPI_Group_free(&group);
    return session;
}

static void close_session(MPI_Session session, MPI_Comm comm) {
    MPI_Barrier(comm);
    MPI_Comm_free(&comm);
    MPI_Session_finalize(&session);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Comm one, two;
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Session session = open_session(&one, "oxib://one");
        if (round == 0) hold_pmix(1);
        MPI_Comm_rank(one, &rank);
        MPI_Comm_size(one, &ranks);
        ring(one, round);
        close_session(session, one);
        meet(round, rank, ranks);
    }
    MPI_Session first = open_session(&one, "oxib://first"), second = open_session(&two, "oxib://second");
    ring(two, 10);
    close_session(second, two);
    ring(one, 11);
    close_session(first, one);
    meet(ROUNDS, rank, ranks);
    start(&argc, &argv, &rank, &ranks);
    ring(MPI_COMM_WORLD, 12);
    if (rank == 0) printf("PASS sessions\n");
    MPI_Finalize();
    hold_pmix(0);
    return 0;
}
