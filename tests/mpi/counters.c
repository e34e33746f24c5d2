/* A tool reads the transport's counters (MPI_T performance variables): what it has sent and received is counted, and nothing that was before the
 * handle. The first argument is what their names begin with. */
#include "check.h"

enum { MESSAGES = 500 };

/* A started handle for the counter `prefix` + `name`. */
static MPI_T_pvar_handle watch(MPI_T_pvar_session session, const char *prefix, const char *name) {
    char wanted[256];
    int index, count, one = 0;
    MPI_T_pvar_handle handle;
    snprintf(wanted, sizeof wanted, "%s%s", prefix, name);
    REQUIRE(MPI_T_pvar_get_index(wanted, MPI_T_PVAR_CLASS_COUNTER, &index) == MPI_SUCCESS, "there is no counter %s", wanted);
    char about[4096], read[256];
    int room = sizeof read, space = sizeof about, verbosity, class, binding, readonly, continuous, atomic;
    MPI_Datatype type;
    MPI_T_enum values;
    REQUIRE(MPI_T_pvar_get_info(index, read, &room, &verbosity, &class, &type, &values, about, &space, &binding, &readonly, &continuous,
                                &atomic) == MPI_SUCCESS, "no info of %s", wanted);
    REQUIRE(class == MPI_T_PVAR_CLASS_COUNTER && type == MPI_UNSIGNED_LONG_LONG && binding == MPI_T_BIND_NO_OBJECT && readonly && continuous,
            "%s is not a read-only counter", wanted);
    REQUIRE(strlen(about) > 10, "%s is not described: \"%s\"", wanted, about);
    REQUIRE(MPI_T_pvar_handle_alloc(session, index, NULL, &handle, &one) == MPI_SUCCESS, "no handle of %s", wanted);
    REQUIRE(one == 1, "%s has %d values", wanted, one);
    count = MPI_T_pvar_start(session, handle); /* continuous ones run already */
    REQUIRE(count == MPI_SUCCESS || count == MPI_T_ERR_PVAR_NO_STARTSTOP, "%s does not start: %d", wanted, count);
    return handle;
}

static unsigned long long value(MPI_T_pvar_session session, MPI_T_pvar_handle handle) {
    unsigned long long count = 0;
    REQUIRE(MPI_T_pvar_read(session, handle, &count) == MPI_SUCCESS, "a counter cannot be read");
    return count;
}

static void exchange(int rank, int count) {
    char out[8] = "abcdefg", in[8];
    for (int n = 0; n < count; n++) {
        MPI_Sendrecv(out, 8, MPI_BYTE, 1 - rank, 1, in, 8, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv) {
    int rank, ranks, provided;
    const char *prefix = argc > 1 ? argv[1] : "btl_oxib_";
    MPI_T_pvar_session session;
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    start(&argc, &argv, &rank, &ranks);
    REQUIRE(ranks == 2, "two ranks, not %d", ranks);
    exchange(rank, 100);
    MPI_T_pvar_session_create(&session);
    MPI_T_pvar_handle sent = watch(session, prefix, "sent_inline"), received = watch(session, prefix, "received");
    MPI_T_pvar_handle completions = watch(session, prefix, "completions"), failed = watch(session, prefix, "failed");
    exchange(rank, MESSAGES);
    unsigned long long out = value(session, sent), in = value(session, received), done = value(session, completions);
    REQUIRE(out >= MESSAGES && out < MESSAGES + 50, "%llu messages were sent, of %d", out, MESSAGES);
    REQUIRE(in >= MESSAGES - 1 && in < MESSAGES + 50, "%llu messages were received, of %d", in, MESSAGES);
    REQUIRE(done * 12 <= out + 24, "%llu completions of %llu messages", done, out);
    REQUIRE(value(session, failed) == 0, "a connection has failed");
    MPI_T_pvar_handle_free(session, &sent);
    MPI_T_pvar_session_free(&session);
    MPI_T_finalize(); /* here and not after MPI_Finalize, where Open MPI 4.1 crashes over any transport */
    finish("counters");
    return 0;
}
