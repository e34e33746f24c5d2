/* A rank that talks with two others, which talk with each other, in one of the scenes of tests/points.txt, and that kills itself on the way, by
 * SOFTIB_FAULTS. Arguments: the scene, and whether the last rank asks rank 0 for their connection (`asks`) or is asked (`asked`). */
#include "check.h"

enum { HELLO = 1, ANSWER, PLAIN, LENGTH = 40, STREAM = 100, SINK = 300, LONG = 1 << 20 };

static int rank, victim;

static void send_to(int to, int length, int tag) {
    unsigned char *out = memory(LONG);
    fill(out, (size_t)length, seed_of((uint64_t)rank, (uint64_t)to, (uint64_t)tag, 0));
    MPI_Send(out, length, MPI_BYTE, to, tag, MPI_COMM_WORLD);
    free(out);
}

static void receive_from(int from, int length, int tag) {
    unsigned char *in = memory(LONG);
    MPI_Recv(in, length, MPI_BYTE, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    verify(in, (size_t)length, seed_of((uint64_t)from, (uint64_t)rank, (uint64_t)tag, 0), "a message");
    free(in);
}

static void greet(int to) {
    send_to(to, LENGTH, HELLO);
    receive_from(to, LENGTH, ANSWER);
}

static void answer(int from) {
    receive_from(from, LENGTH, HELLO);
    send_to(from, LENGTH, ANSWER);
}

/* Messages of `victim`, each answered: a process that waits for none takes no offer of a ring. */
static void play_ring(int survivor) {
    for (int n = 0; n < STREAM; n++)
        if (rank == victim) {
            send_to(survivor, LENGTH, PLAIN);
            receive_from(survivor, LENGTH, ANSWER);
        } else {
            receive_from(victim, LENGTH, PLAIN);
            send_to(victim, LENGTH, ANSWER);
        }
}

/* What the scene has between `victim` and `survivor`; this process is one of them. */
static void play(const char *scene, int survivor) {
    if (strcmp(scene, "ring") == 0) return play_ring(survivor);
    int streams = strcmp(scene, "stream") == 0;
    int speaks = streams || strcmp(scene, "put") == 0;
    int from = speaks ? victim : survivor, to = speaks ? survivor : victim;
    int is_long = strcmp(scene, "put") == 0 || strcmp(scene, "get") == 0;
    int count = streams ? STREAM : strcmp(scene, "sink") == 0 ? SINK : is_long ? 1 : 0;
    for (int n = 0; n < count; n++)
        if (rank == from) send_to(to, is_long ? LONG : LENGTH, PLAIN);
        else receive_from(from, is_long ? LONG : LENGTH, PLAIN);
}

int main(int argc, char **argv) {
    int ranks;
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(argc == 3 && ranks == 3, "usage: three ranks, points SCENE asks|asked");
    int is_asked = strcmp(argv[2], "asked") == 0;
    victim = ranks - 1;
    if (rank == 0) greet(1);
    if (rank == 1) answer(0);
    for (int survivor = 0; survivor < victim; survivor++) {
        int survivor_asks = is_asked && survivor == 0;
        if (rank == victim && survivor_asks) answer(survivor);
        else if (rank == victim) greet(survivor);
        else if (rank == survivor && survivor_asks) greet(victim);
        else if (rank == survivor) answer(victim);
    }
    for (int survivor = 0; survivor < victim; survivor++)
        if (rank == victim || rank == survivor) play(argv[1], survivor);
    printf("PASS points of rank %d\n", rank);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
