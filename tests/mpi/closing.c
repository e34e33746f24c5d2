/* The end of connections while messages of both sides are on their way: eager ones and long ones, whose sends nothing waits for but the end itself.
 *
 *   received     every rank receives what others sent it, the even ones late, and goes to MPI_Finalize at once: others wait there with what they have sent
 *   unreceived   no rank receives anything: what is left lies with the receivers, and the long ones never begin
 *   disconnect   parents and children that were spawned do so over their communicator, and end it by MPI_Comm_disconnect; twice, with other children
 *
 * In `disconnect` some messages are not received, either. */
#include "check.h"

#include <unistd.h>

enum { EAGER = 40, LONGS = 3, MESSAGES = EAGER + LONGS, MOST_PEERS = 8, LENGTH = 300000, LIVES = 2 };

static const useconds_t OUTSIDE = 150000;

/* What is sent stays until the process ends. */
static unsigned char out[LIVES][MOST_PEERS][MESSAGES][LENGTH], in[LENGTH];

static int size_at(int n) {
    static const int sizes[] = {0, 8, 1000, 4000, 200, 12000};
    return n < EAGER ? sizes[n % 6] : LENGTH - n;
}

static uint64_t seed_at(int from, int to, int n, int child) { return seed_of((uint64_t)from, (uint64_t)to, (uint64_t)n, (uint64_t)child); }

static void send_all(MPI_Comm comm, int from, int to, int child, int life) {
    for (int n = 0; n < MESSAGES; n++) {
        MPI_Request request;
        fill(out[life][to][n], (size_t)size_at(n), seed_at(from, to, n, child));
        MPI_Isend(out[life][to][n], size_at(n), MPI_BYTE, to, n, comm, &request);
        MPI_Request_free(&request);
    }
}

/* Those before the `first` are not received. */
static void receive_all(MPI_Comm comm, int from, int to, int child, int first) {
    for (int n = first; n < MESSAGES; n++) {
        MPI_Recv(in, LENGTH, MPI_BYTE, from, n, comm, MPI_STATUS_IGNORE);
        verify(in, (size_t)size_at(n), seed_at(from, to, n, child), "a message of one that ends");
    }
}

static void among_ranks(int rank, int ranks, int received) {
    for (int peer = 0; peer < ranks; peer++)
        if (peer != rank) send_all(MPI_COMM_WORLD, rank, peer, 0, 0);
    if (rank % 2 == 0) usleep(OUTSIDE);
    for (int peer = 0; received && peer < ranks; peer++)
        if (peer != rank) receive_all(MPI_COMM_WORLD, peer, rank, 0, 0);
}

static void over(MPI_Comm inter, int rank, int child, int life) {
    int others;
    MPI_Comm_remote_size(inter, &others);
    for (int peer = 0; peer < others; peer++) send_all(inter, rank, peer, child, life);
    if (child) usleep(OUTSIDE);
    for (int peer = 0; peer < others; peer++) receive_all(inter, peer, rank, !child, EAGER / 2);
    MPI_Comm_disconnect(&inter);
}

static void with_children(char *program, int rank) {
    char *arguments[] = {"disconnect", NULL};
    for (int life = 0; life < LIVES; life++) {
        MPI_Comm inter;
        MPI_Comm_spawn(program, arguments, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter, MPI_ERRCODES_IGNORE);
        over(inter, rank, 0, life);
    }
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Comm parent;
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(argc == 2 && ranks <= MOST_PEERS, "usage: closing received|unreceived|disconnect, with %d ranks at most", MOST_PEERS);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) over(parent, rank, 1, 0);
    else if (strcmp(argv[1], "disconnect") == 0) with_children(argv[0], rank);
    else among_ranks(rank, ranks, strcmp(argv[1], "received") == 0);
    MPI_Finalize();
    if (parent == MPI_COMM_NULL && rank == 0) printf("PASS closing\n");
    return 0;
}
