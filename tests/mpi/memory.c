/* How much memory rank 0 takes: at the start, with one peer, with all. `memory MODE`: idle exchanges one small message with
 * each peer, busy a few hundred of several sizes. `cargo xtask bench --memory` makes a table of the reports. */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>

/* In KiB. */
struct memory {
    long resident;   /* pages mapped */
    long share;      /* the same, where a shared page counts by its part */
    long heap;       /* what malloc has given out */
    long registered; /* with the device */
};

/* Bytes that oxib has registered: a performance variable. */
static unsigned long long registered_by_oxib(void) {
    int index, count, provided;
    unsigned long long bytes = 0;
    MPI_T_pvar_session session;
    MPI_T_pvar_handle handle;
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    if (MPI_T_pvar_get_index("btl_oxib_registered_high", MPI_T_PVAR_CLASS_HIGHWATERMARK, &index) == MPI_SUCCESS &&
        MPI_T_pvar_session_create(&session) == MPI_SUCCESS) {
        if (MPI_T_pvar_handle_alloc(session, index, NULL, &handle, &count) == MPI_SUCCESS) MPI_T_pvar_read(session, handle, &bytes);
        MPI_T_pvar_session_free(&session);
    }
    MPI_T_finalize();
    return bytes;
}

/* Of another library on the software device, its drop-in libibverbs tells. */
static unsigned long long registered(void) {
    void *verbs = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
    unsigned long long (*tell)(void) = NULL;
    if (verbs) *(void **)&tell = dlsym(verbs, "oxib_softib_registered");
    return tell ? tell() : registered_by_oxib();
}

static struct memory look(void) {
    struct memory now = {-1, -1, -1, -1};
    char line[256];
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    REQUIRE(file != NULL, "there is no /proc/self/smaps_rollup");
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "Rss: %ld", &now.resident);
        sscanf(line, "Pss: %ld", &now.share);
    }
    fclose(file);
    struct mallinfo2 info = mallinfo2();
    now.heap = (long)((info.uordblks + info.hblkhd) / 1024);
    now.registered = (long)(registered() / 1024);
    return now;
}

static void report(const char *when, int peers, struct memory now) {
    printf("memory %s peers %d resident %ld share %ld heap %ld registered %ld\n", when, peers, now.resident, now.share, now.heap,
           now.registered);
    fflush(stdout);
}

static char buffer[RENDEZVOUS];

static void exchange(int rank, int peer, int bytes) {
    int to = rank == 0 ? peer : 0;
    for (int turn = 0; turn < 2; turn++) {
        uint64_t seed = seed_of(turn == 0 ? 0 : peer, turn == 0 ? peer : 0, bytes, turn);
        if ((turn == 0) == (rank == 0)) {
            fill(buffer, bytes, seed);
            MPI_Send(buffer, bytes, MPI_BYTE, to, 7, MPI_COMM_WORLD);
        } else {
            MPI_Recv(buffer, bytes, MPI_BYTE, to, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            verify(buffer, bytes, seed, "a message of the exchange");
        }
    }
}

static void talk(int rank, int peer, int busy) {
    static const int sizes[] = {8, 100, 1000, 8000, RENDEZVOUS};
    if (!busy) {
        exchange(rank, peer, 8);
        return;
    }
    for (int round = 0; round < 100; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) exchange(rank, peer, sizes[i]);
    }
}

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    int busy = argc > 1 && strcmp(argv[1], "busy") == 0;
    if (rank == 0) report("start", 0, look());
    for (int peer = 1; peer < ranks; peer++) {
        if (rank == 0 || rank == peer) talk(rank, peer, busy);
        if (rank == 0 && (peer == 1 || peer == ranks - 1)) report(peer == 1 ? "first" : "last", peer, look());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("PASS memory\n");
    MPI_Finalize();
    return 0;
}
