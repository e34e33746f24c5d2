/* What each step of a message costs rank 0, for callgrind: `cargo xtask bench --instructions` runs rank 0 under it.
 *
 * Arguments: messages of each kind, bytes of a message.
 *
 *     rank 0                                           rank 1
 *     send_messages: MPI_Send, 16 times                receives them, and both meet
 *     look_idle:     progress, 16 times                looks around
 *     look_arrived:  for each: waits outside of MPI    sends one, says so
 *                    progress, which finds it, and again
 *     look_burst:    the same for 16 at a time
 *
 * Rank 1 says so through a word that both map, so that a message is there when rank 0 looks. Each of the four functions is one
 * that callgrind can tell apart, and does nothing else. */
#include "check.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BURST = 16, LONGEST = 65536, WARM = 400 };

static int rank, count, bytes;
static unsigned char out[LONGEST], in[BURST][LONGEST];
static void (*progress)(void);
/* Messages that rank 1 may send, and has sent. */
static struct { _Atomic int wanted, sent; } *shared;

static void map_shared(void) {
    char name[64] = "";
    if (rank == 0) snprintf(name, sizeof name, "/dev/shm/oxib-instructions-%d", (int)getpid());
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    int file = open(name, O_RDWR | O_CREAT, 0600);
    REQUIRE(file >= 0 && ftruncate(file, sizeof *shared) == 0, "cannot make %s", name);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(shared != MAP_FAILED, "cannot map %s", name);
    close(file);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) unlink(name);
}

/* Rank 1 sends this many more, and they have gone. */
static void have_sent(int messages) {
    int wanted = atomic_fetch_add(&shared->wanted, messages) + messages;
    while (atomic_load(&shared->sent) < wanted) sched_yield(); // outside of MPI
}

static void serve(int messages) {
    for (int sent = 0; sent < messages;) {
        // What waits for a credit or a send slot goes out meanwhile.
        while (sent >= atomic_load(&shared->wanted)) {
            progress();
            sched_yield();
        }
        MPI_Send(out, bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
        atomic_store(&shared->sent, ++sent);
    }
}

__attribute__((noipa)) static void send_messages(int messages) {
    for (int i = 0; i < messages; i++) MPI_Send(out, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
}

/* The same, not counted: connections and rings come up. */
__attribute__((noipa)) static void warm_up(int messages) {
    for (int i = 0; i < messages; i++) MPI_Send(out, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
}

static void take_messages(int messages) {
    for (int i = 0; i < messages; i++) MPI_Recv(in[0], bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Rank 1 answers each burst, so that there is always a credit. */
static void send_bursts(int bursts, void (*send)(int)) {
    for (int i = 0; i < bursts; i++) {
        if (rank == 0) send(BURST);
        else take_messages(BURST);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

__attribute__((noipa)) static void look_idle(int looks) {
    for (int i = 0; i < looks; i++) progress();
}

__attribute__((noipa)) static void look_arrived(void) {
    progress();
    progress();
}

__attribute__((noipa)) static void look_burst(void) {
    progress();
    progress();
}

/* `messages` at a time, `times` times, which `look` finds. */
static void receive(int messages, int times, void (*look)(void)) {
    for (int i = 0; i < times; i++) {
        MPI_Request requests[BURST];
        for (int at = 0; at < messages; at++)
            MPI_Irecv(in[at], bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &requests[at]);
        have_sent(messages);
        look();
        MPI_Waitall(messages, requests, MPI_STATUSES_IGNORE);
    }
}

/* What rank 0 has begun is over. */
static void quiet(void) {
    for (int i = 0; i < WARM; i++) progress();
}

int main(int argc, char **argv) {
    int ranks;
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(argc == 3, "usage: instructions MESSAGES BYTES");
    count = atoi(argv[1]);
    bytes = atoi(argv[2]);
    REQUIRE(count >= BURST && bytes >= 0 && bytes <= LONGEST, "messages from %d, bytes to %d", BURST, LONGEST);
    *(void **)&progress = dlsym(RTLD_DEFAULT, "opal_progress");
    REQUIRE(progress, "Open MPI has no opal_progress");
    map_shared();
    int bursts = count / BURST, all = 2 * WARM + count + BURST * bursts;
    if (rank == 1) {
        send_bursts(WARM / BURST, warm_up);
        send_bursts(bursts, send_messages);
        serve(all);
    } else {
        send_bursts(WARM / BURST, warm_up);
        send_bursts(bursts, send_messages);
        receive(1, WARM, quiet);
        for (int i = 0; i < bursts; i++) look_idle(BURST);
        receive(1, count, look_arrived);
        receive(1, WARM, quiet);
        receive(BURST, bursts, look_burst);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    finish("instructions");
    return 0;
}
