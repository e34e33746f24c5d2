/* The functions of oxib's modules, called as Open MPI's upper layers call them, from threads and from within receive callbacks, where MPI
 * itself would hide what happens: ob1 sorts by sequence numbers, and asks again when it is refused. Open MPI 4.1 only: the few fields
 * of its structures that are needed are declared here (opal/mca/btl/btl.h, opal/class/opal_list.h, opal/util/proc.h). Rank 1 is the one under test. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { uint32_t job, rank; } Name;
typedef struct { char item[40]; Name name; } Proc;
typedef struct { void *addr; uint64_t length; } Segment;
typedef struct Module Module;
typedef void (*Completion)(Module *, void *, void *, void *, void *, void *, int);
typedef struct {
    char item[56];
    Segment *segments;
    size_t count;
    void *callback, *data, *context;
    uint32_t flags;
    uint8_t order;
} Descriptor;
typedef struct {
    char before[84], name[64], functions[116];
    void *init;
    int (*progress)(void);
} Component;
struct Module {
    Component *component;
    size_t limits[6];
    uint32_t numbers[5];
    size_t handle_size, rdma_limits[6];
    int (*add_procs)(Module *, size_t, Proc **, void **, void *);
    int (*del_procs)(Module *, size_t, Proc **, void **);
    void *register_tag, *finalize;
    Descriptor *(*alloc)(Module *, void *, uint8_t, size_t, uint32_t);
    void *free, *prepare_src;
    int (*send)(Module *, void *, Descriptor *, uint8_t);
    int (*sendi)(Module *, void *, void *, void *, size_t, size_t, uint8_t, uint32_t, uint8_t, Descriptor **);
    int (*put)(Module *, void *, void *, uint64_t, void *, void *, size_t, int, int, Completion, void *, void *);
    void *get, *dump, *atomics[3];
    void *(*register_mem)(Module *, void *, void *, size_t, uint32_t);
    void *deregister_mem, *mpool;
    int (*register_error)(Module *, void (*)(Module *, int32_t flags, void *proc, char *why));
};
typedef struct Selected {
    char object[16];
    struct Selected *next, *previous;
    int32_t free;
    Component *component;
    Module *module;
} Selected;
typedef void (*Receiver)(const Segment *);
typedef struct { void (*function)(void); void *data; } Trigger;

enum { TAG = 0x80, NO_ORDER = 255, OWNED = 2, CALLS_BACK = 4, REMOTE_WRITE = 4, LOCAL_WRITE = 1, THREADS = 4, MESSAGES = 100, MANY = 20000, MOST = 8 };

/* What ranks tell each other without MPI: in a file that all of them map, for a window would connect them. */
static struct Shared {
    atomic_int mapped, ready, sent, go, done, arrived;
} *shared;

static int rank, ranks;
static Module *modules[MOST];
static int module_count;
static void *endpoints[MOST][MOST];
static int (*progress)(void);
static Proc *(*my_proc)(void);
static Proc *(**proc_for_name)(Name);
static Trigger *triggers;

static atomic_ulong began, released, accepted, looks[THREADS];
static atomic_int out_of_order, overtaken, stop;
static __thread int number_of_thread = -1;
static __thread unsigned long allocations;

extern void *__libc_malloc(size_t);
void *malloc(size_t size) {
    allocations++;
    return __libc_malloc(size);
}

static void *symbol(const char *name) {
    void *address = dlsym(RTLD_DEFAULT, name);
    REQUIRE(address != NULL, "this Open MPI has no %s", name);
    return address;
}

static void map_shared(void) {
    char path[300];
    const char *temporary = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/oxib-plugin-%d", temporary ? temporary : "/tmp", (int)getppid());
    int file = open(path, O_CREAT | O_RDWR, 0600);
    REQUIRE(file >= 0 && ftruncate(file, sizeof *shared) == 0, "cannot make %s", path);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(shared != MAP_FAILED, "cannot map %s", path);
    close(file);
    /* The last of them takes the name away. */
    if (atomic_fetch_add(&shared->mapped, 1) == ranks - 1) unlink(path);
}

static void find_modules(void) {
    char *list = symbol("mca_btl_base_modules_initialized");
    Selected *end = (Selected *)(list + 16);
    for (Selected *at = end->next; at != end; at = at->next)
        if (strcmp(at->component->name, "oxib") == 0 && module_count < MOST) modules[module_count++] = at->module;
    REQUIRE(module_count > 0, "no module of oxib");
    progress = (int (*)(void))symbol("opal_progress");
    my_proc = (Proc * (*)(void)) symbol("opal_proc_local_get");
    proc_for_name = (Proc * (**)(Name)) symbol("opal_proc_for_name");
    triggers = symbol("mca_btl_base_active_message_trigger");
}

static Proc *proc_of(int peer) {
    Name name = my_proc()->name;
    name.rank = (uint32_t)peer;
    return (*proc_for_name)(name);
}

static void find_endpoints(void) {
    for (int m = 0; m < module_count; m++)
        for (int peer = 0; peer < ranks; peer++) {
            Proc *proc = proc_of(peer);
            if (peer == rank) continue;
            REQUIRE(modules[m]->add_procs(modules[m], 1, &proc, &endpoints[m][peer], NULL) == 0, "add_procs");
            REQUIRE(endpoints[m][peer] != NULL, "no endpoint of rank %d on module %d", peer, m);
        }
}

/* A send that may be refused; true: it was taken. */
static int try_send(int m, int peer, uint64_t number) {
    return modules[m]->sendi(modules[m], endpoints[m][peer], NULL, &number, sizeof number, 0, NO_ORDER, OWNED, TAG, NULL) == 0;
}

static Descriptor *filled(int m, int peer, uint64_t number) {
    Descriptor *descriptor = modules[m]->alloc(modules[m], endpoints[m][peer], NO_ORDER, sizeof number, OWNED);
    REQUIRE(descriptor != NULL, "alloc");
    memcpy(descriptor->segments[0].addr, &number, sizeof number);
    return descriptor;
}

/* A send that is never refused, and connects. */
static void send_always(int m, int peer, uint64_t number) {
    Descriptor *descriptor = filled(m, peer, number);
    REQUIRE(modules[m]->send(modules[m], endpoints[m][peer], descriptor, TAG) >= 0, "send");
}

static uint64_t number_in(const Segment *segments) {
    uint64_t number;
    memcpy(&number, segments[0].addr, sizeof number);
    return number;
}

/* What is called for each message of TAG; Open MPI's two ways to call a receiver lead to it. */
static Receiver receiver;

#if OMPI_MAJOR_VERSION >= 5
typedef struct {
    void *endpoint;
    const Segment *segments;
    size_t count;
    uint8_t tag;
    void *data;
} Arrived;
static void arrived(Module *module, const Arrived *message) {
    (void)module;
    receiver(message->segments);
}
#else
static void arrived(Module *module, uint8_t tag, const Descriptor *message, void *data) {
    (void)module, (void)tag, (void)data;
    receiver(message->segments);
}
#endif

static void receive_with(Receiver function) {
    receiver = function;
    triggers[TAG].function = (void (*)(void))arrived;
}

static void *look_around(void *argument) {
    number_of_thread = (int)(intptr_t)argument;
    while (!atomic_load(&stop)) {
        progress();
        atomic_fetch_add(&looks[number_of_thread], 1);
    }
    return NULL;
}

static void start_threads(pthread_t *threads, int count) {
    for (int t = 0; t < count; t++)
        REQUIRE(pthread_create(&threads[t], NULL, look_around, (void *)(intptr_t)t) == 0, "cannot start thread %d", t);
}

static void end_threads(pthread_t *threads, int count) {
    atomic_store(&stop, 1);
    for (int t = 0; t < count; t++) pthread_join(threads[t], NULL);
}

/* Every other thread has looked around 100 times more, or the next message has gone up. */
static void let_others_look(unsigned long position) {
    unsigned long seen[THREADS];
    for (int t = 0; t < THREADS; t++) seen[t] = atomic_load(&looks[t]);
    for (int t = 0; t < THREADS; t++)
        while (t != number_of_thread && atomic_load(&looks[t]) < seen[t] + 100)
            if (atomic_load(&began) != position + 1) return;
}

static unsigned long take_position(uint64_t number) {
    unsigned long position = atomic_fetch_add(&began, 1);
    if (position != number) atomic_fetch_add(&out_of_order, 1);
    return position;
}

static void hold(const Segment *segments) {
    uint64_t number = number_in(segments);
    unsigned long position = take_position(number);
    if (number % 25 != 0) return;
    while (!atomic_load(&shared->sent)) continue;
    let_others_look(position);
    if (atomic_load(&began) != position + 1) atomic_fetch_add(&overtaken, 1);
}

static void nest(const Segment *segments) {
    uint64_t number = number_in(segments);
    unsigned long position = take_position(number);
    while (number % 25 == 0 && atomic_load(&began) == position + 1) progress();
}

static void wait_for_another(const Segment *segments) {
    uint64_t number = number_in(segments);
    unsigned long position = take_position(number);
    while (number == 0 && atomic_load(&began) == position + 1) sched_yield();
}

/* Rank 0 sends numbered messages; four threads of rank 1 look around, and `callback` says what its calls saw. */
static void in_order(Receiver callback) {
    pthread_t threads[THREADS];
    receive_with(callback);
    if (rank == 1) start_threads(threads, THREADS);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        for (uint64_t n = 0; n < MESSAGES; n++)
            while (!try_send(0, 1, n)) progress();
        atomic_store(&shared->sent, 1);
        while (!atomic_load(&shared->done)) progress();
    }
    if (rank == 1) {
        while (atomic_load(&began) < MESSAGES) sched_yield();
        end_threads(threads, THREADS);
        REQUIRE(overtaken == 0, "%d callbacks were overtaken by a later message's", overtaken);
        REQUIRE(out_of_order == 0, "%d messages went up out of order", out_of_order);
        atomic_store(&shared->done, 1);
    }
}

static void stay_inside(const Segment *segments) {
    (void)segments;
    atomic_fetch_add(&began, 1);
    while (!atomic_load(&released)) sched_yield();
}

static void count_arrivals(const Segment *segments) {
    (void)segments;
    atomic_fetch_add(&shared->arrived, 1);
}

/* Rank 0 takes nothing. One thread of rank 1 is in a receive callback, another one sends: it is refused once its share is used up. */
static void outside(void) {
    pthread_t thread[1];
    receive_with(rank == 1 ? stay_inside : count_arrivals);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        /* Or the barrier would be in the callback. */
        while (!atomic_load(&shared->ready)) sched_yield();
        while (!try_send(0, 1, 0)) progress();
        while (!atomic_load(&shared->go)) sched_yield();
        while (atomic_load(&shared->arrived) < atomic_load(&shared->sent) || !atomic_load(&shared->done)) progress();
    }
    if (rank == 1) {
        int sent = 0;
        atomic_store(&shared->ready, 1);
        start_threads(thread, 1);
        while (!atomic_load(&began)) sched_yield();
        while (sent < MANY && try_send(0, 0, 0)) sent++;
        atomic_store(&shared->sent, sent);
        atomic_store(&released, 1);
        atomic_store(&shared->go, 1);
        while (atomic_load(&shared->arrived) < sent) progress();
        end_threads(thread, 1);
        REQUIRE(sent < MANY, "%d sends from outside of a callback were taken, while another thread was in one", sent);
        atomic_store(&shared->done, 1);
    }
}

/* From the callback of a message of the first port, over the second: none may be refused. */
static void answer_elsewhere(const Segment *segments) {
    if (number_in(segments) != 1) return;
    while (accepted < MANY && try_send(1, 0, 0)) accepted++;
    atomic_store(&began, 1);
}

static void ports(void) {
    REQUIRE(module_count == 2, "%d ports, not 2", module_count);
    receive_with(rank == 1 ? answer_elsewhere : count_arrivals);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) send_always(1, 0, 0);
    if (rank == 0) {
        while (!atomic_load(&shared->arrived)) progress();
        send_always(0, 1, 0);
        send_always(0, 1, 1);
        while (!atomic_load(&shared->go)) progress();
        while (!atomic_load(&shared->done)) progress();
    }
    if (rank == 1) {
        while (!atomic_load(&shared->arrived)) progress();
        while (!atomic_load(&began)) progress();
        atomic_store(&shared->go, 1);
        while (atomic_load(&shared->arrived) < 1 + (int)accepted) progress();
        REQUIRE(accepted == MANY, "the %luth send over another port than the callback's was refused", accepted + 1);
        atomic_store(&shared->done, 1);
    }
}

static int is_stopped(int pid) {
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL && fscanf(file, "%*d %*s %c", &state) == 1, "cannot read %s", path);
    fclose(file);
    return state == 'T';
}

static int losses;
static void note_loss(Module *m, int32_t flags, void *proc, char *why) {
    (void)m, (void)flags, (void)proc, (void)why;
    losses++;
}

/* All but rank 0 stand, with more queued to each than it has room for; rank 0 takes them away one by one, as Open MPI does. The limit is
 * what the deadline would come to for two of them. When they go on, each is told that it has lost messages. */
static void stopped(double deadline) {
    int pids[MOST], pid = (int)getpid();
    if (rank != 0) {
        MPI_Send(&pid, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        modules[0]->register_error(modules[0], note_loss);
        while (!atomic_load(&shared->go)) sched_yield();
        raise(SIGSTOP);
        while (losses == 0) progress();
        for (int n = 0; n < 1000; n++) progress();
        REQUIRE(losses == 1, "rank 0, which has left without a word, was reported %d times", losses);
        return;
    }
    /* So all are connected. */
    for (int peer = 1; peer < ranks; peer++) MPI_Recv(&pids[peer], 1, MPI_INT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    atomic_store(&shared->go, 1);
    for (int peer = 1; peer < ranks; peer++)
        while (!is_stopped(pids[peer])) usleep(1000);
    for (int peer = 1; peer < ranks; peer++)
        for (int n = 0; n < 1000; n++) send_always(0, peer, 0);
    double began_at = MPI_Wtime();
    for (int peer = 1; peer < ranks; peer++) {
        Proc *proc = proc_of(peer);
        REQUIRE(modules[0]->del_procs(modules[0], 1, &proc, &endpoints[0][peer]) == 0, "del_procs");
    }
    double took = MPI_Wtime() - began_at;
    for (int peer = 1; peer < ranks; peer++) kill(pids[peer], SIGCONT);
    REQUIRE(took < 2 * deadline, "%d stopped peers took %.1f s, with a deadline of %.0f s", ranks - 1, took, deadline);
}

static atomic_int put_done;
static void note_put(Module *m, void *ep, void *local, void *handle, void *context, void *data, int status) {
    (void)m, (void)ep, (void)local, (void)handle, (void)context, (void)data;
    REQUIRE(status != 0, "a put that cannot have happened succeeded");
    atomic_fetch_add(&put_done, 1);
}

/* A put waits for a connection to a rank that does not enter MPI; then that rank is taken away: the put's callback comes before that returns, for
 * there is no progress afterwards. Rank 0 has given up then, and the other is told so if the connection has come up meanwhile: not a reason to end. */
static void put_then_removed(void) {
    static uint64_t memory_of_put[2];
    if (rank == 1) modules[0]->register_error(modules[0], note_loss);
    if (rank == 0) {
        Module *m = modules[0];
        Proc *proc = proc_of(1);
        void *handle = m->register_mem(m, endpoints[0][1], memory_of_put, sizeof memory_of_put, LOCAL_WRITE | REMOTE_WRITE);
        REQUIRE(handle != NULL, "register_mem");
        int started = m->put(m, endpoints[0][1], memory_of_put, (uint64_t)(uintptr_t)memory_of_put, handle, handle, 8, 0, NO_ORDER, note_put, NULL, NULL);
        REQUIRE(started == 0, "put");
        REQUIRE(m->del_procs(m, 1, &proc, &endpoints[0][1]) == 0, "del_procs");
        REQUIRE(put_done == 1, "the callback of a put came %d times when its peer was taken away", put_done);
        atomic_store(&shared->done, 1);
    }
    while (!atomic_load(&shared->done)) sched_yield();
}

static int arrivals, sends_done;
static void note_arrival(const Segment *segments) {
    (void)segments;
    arrivals++;
}
static void note_sent(Module *m, void *ep, Descriptor *descriptor, int status) {
    (void)m, (void)ep, (void)descriptor, (void)status;
    sends_done++;
}

/* Rank 0 takes rank 1 away as MPI_Finalize does: its communicators are gone, and with them what the upper layer's callbacks use. What rank 1 has
 * sent last and what rank 0 has begun meets no callback any more. */
static void ending(void) {
    enum { PAST_COMM_SELF = 4, LAST = 5, SENT = 1, OVER = 2 };
    Module *m = modules[0];
    int *state = symbol("ompi_mpi_state"), running = *state, other = 1 - rank;
    receive_with(note_arrival);
    send_always(0, other, 0);
    while (arrivals == 0) progress();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) {
        /* What comes while rank 0 is still in the barrier goes up there. */
        while (!atomic_load(&shared->go)) sched_yield();
        for (int n = 0; n < LAST; n++) send_always(0, 0, 0);
        atomic_store(&shared->done, SENT);
        while (atomic_load(&shared->done) != OVER) progress();
        return;
    }
    atomic_store(&shared->go, 1);
    while (atomic_load(&shared->done) != SENT) sched_yield();
    Descriptor *descriptor = m->alloc(m, endpoints[0][1], NO_ORDER, 8, CALLS_BACK);
    REQUIRE(descriptor != NULL, "alloc");
    descriptor->callback = (void *)note_sent;
    REQUIRE(m->send(m, endpoints[0][1], descriptor, TAG) == 0, "a send with a callback was done at once");
    Proc *proc = proc_of(1);
    *state = PAST_COMM_SELF;
    REQUIRE(m->del_procs(m, 1, &proc, &endpoints[0][1]) == 0, "del_procs");
    *state = running;
    REQUIRE(arrivals == 1 && sends_done == 0, "%d messages and %d completions went up as MPI ended", arrivals - 1, sends_done);
    atomic_store(&shared->done, OVER);
}

static void allocates(void) {
    REQUIRE(module_count == 2, "%d ports, not 2", module_count);
    MPI_Barrier(MPI_COMM_WORLD);
    int (*look)(void) = modules[0]->component->progress;
    look();
    unsigned long before = allocations;
    for (int n = 0; n < 1000; n++) look();
    /* Connections that come up meanwhile have events. */
    REQUIRE(allocations - before < 100, "1000 looks around on two ports allocated %lu times", allocations - before);
}

int main(int argc, char **argv) {
    int provided;
    const char *what = argc > 1 ? argv[1] : "";
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check_rank = rank;
    map_shared();
    find_modules();
    find_endpoints();
    if (strcmp(what, "hold") == 0) in_order(hold);
    else if (strcmp(what, "nest") == 0) in_order(nest);
    else if (strcmp(what, "wait") == 0) in_order(wait_for_another);
    else if (strcmp(what, "outside") == 0) outside();
    else if (strcmp(what, "ports") == 0) ports();
    else if (strcmp(what, "stopped") == 0) stopped(argc > 2 ? atof(argv[2]) : 1.0);
    else if (strcmp(what, "put") == 0) put_then_removed();
    else if (strcmp(what, "ending") == 0) ending();
    else if (strcmp(what, "allocates") == 0) allocates();
    else fail("no test is called \"%s\"", what);
    if (rank == 0) printf("PASS plugin\n");
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
