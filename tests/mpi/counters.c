/* A tool reads the transport's counters (MPI_T performance variables): what it has sent and received is counted, and nothing that was before the
 * handle; marks are the highest and lowest since the start. The first argument is what their names begin with. */
#include "check.h"

enum { MESSAGES = 500, BURST = 200 };

/* A started handle for the variable `prefix` + `name` of class `kind`. */
static MPI_T_pvar_handle watch(MPI_T_pvar_session session, const char *prefix, const char *name, int kind) {
    char wanted[256];
    int index, count, one = 0;
    MPI_T_pvar_handle handle;
    snprintf(wanted, sizeof wanted, "%s%s", prefix, name);
    REQUIRE(MPI_T_pvar_get_index(wanted, kind, &index) == MPI_SUCCESS, "there is no %s of class %d", wanted, kind);
    char about[4096], read[256];
    int room = sizeof read, space = sizeof about, verbosity, class, binding, readonly, continuous, atomic;
    MPI_Datatype type;
    MPI_T_enum values;
    REQUIRE(MPI_T_pvar_get_info(index, read, &room, &verbosity, &class, &type, &values, about, &space, &binding, &readonly, &continuous,
                                &atomic) == MPI_SUCCESS, "no info of %s", wanted);
    REQUIRE(class == kind && type == MPI_UNSIGNED_LONG_LONG && binding == MPI_T_BIND_NO_OBJECT && readonly && continuous,
            "%s is not read-only, of class %d", wanted, kind);
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

/* A burst takes credits, unless it goes into rings, and goes with few completions; the marks keep both, and a handle made afterwards reads them, too. */
static void marks(MPI_T_pvar_session session, const char *prefix, int rank, int rings) {
    char out[BURST][8] = {{0}}, in[BURST][8];
    MPI_Request requests[BURST];
    MPI_T_pvar_handle low = watch(session, prefix, "credits_low", MPI_T_PVAR_CLASS_LOWWATERMARK);
    unsigned long long before = value(session, low);
    for (int n = 0; n < BURST && rank == 0; n++) MPI_Isend(out[n], 8, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &requests[n]);
    for (int n = 0; n < BURST && rank == 1; n++) MPI_Irecv(in[n], 8, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &requests[n]);
    MPI_Waitall(BURST, requests, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    exchange(rank, 100); /* the completions come in */
    MPI_T_pvar_handle later = watch(session, prefix, "credits_low", MPI_T_PVAR_CLASS_LOWWATERMARK);
    MPI_T_pvar_handle run = watch(session, prefix, "unsignalled_high", MPI_T_PVAR_CLASS_HIGHWATERMARK);
    MPI_T_pvar_handle held = watch(session, prefix, "held_high", MPI_T_PVAR_CLASS_HIGHWATERMARK);
    unsigned long long fewest = value(session, low), longest = value(session, run);
    REQUIRE(fewest <= before && fewest == value(session, later), "%llu credits were left at least, %llu before, %llu to a later handle", fewest,
            before, value(session, later));
    REQUIRE(rank != 0 || rings || fewest < before || fewest == 0, "%llu credits were left at least by %d messages, %llu before", fewest, BURST, before);
    REQUIRE(longest > 0 && longest <= 64, "%llu requests in a row were not signalled", longest);
    REQUIRE(value(session, held) < 100000, "%llu messages were held", value(session, held));
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
    const int counter = MPI_T_PVAR_CLASS_COUNTER;
    MPI_T_pvar_handle sent = watch(session, prefix, "sent_inline", counter), received = watch(session, prefix, "received", counter);
    MPI_T_pvar_handle eager = watch(session, prefix, "sent_eager", counter);
    MPI_T_pvar_handle completions = watch(session, prefix, "completions", counter), failed = watch(session, prefix, "failed", counter);
    MPI_T_pvar_handle bytes_out = watch(session, prefix, "bytes_sent", counter), bytes_in = watch(session, prefix, "bytes_received", counter);
    MPI_T_pvar_handle to_peer = watch(session, prefix, "peer_bytes_sent", MPI_T_PVAR_CLASS_HIGHWATERMARK);
    unsigned long long to_peer_before = value(session, to_peer);
    exchange(rank, MESSAGES);
    unsigned long long written = value(session, eager), out = value(session, sent) + written, in = value(session, received), done = value(session, completions);
    REQUIRE(out >= MESSAGES && out < MESSAGES + 50, "%llu messages were sent, of %d", out, MESSAGES);
    REQUIRE(in >= MESSAGES - 1 && in < MESSAGES + 50, "%llu messages were received, of %d", in, MESSAGES);
    REQUIRE(done * 12 <= out + 24, "%llu completions of %llu messages", done, out);
    REQUIRE(value(session, failed) == 0, "a connection has failed");
    unsigned long long sent_bytes = value(session, bytes_out), received_bytes = value(session, bytes_in);
    REQUIRE(sent_bytes >= 8 * MESSAGES && sent_bytes < 100 * (MESSAGES + 50), "%llu bytes were sent in %d messages of 8", sent_bytes, MESSAGES);
    REQUIRE(received_bytes >= 8 * (MESSAGES - 1) && received_bytes < 100 * (MESSAGES + 50), "%llu bytes were received", received_bytes);
    unsigned long long to_peer_now = value(session, to_peer);
    REQUIRE(to_peer_now >= to_peer_before + 8 * MESSAGES, "%llu bytes to the one peer, %llu before", to_peer_now, to_peer_before);
    int rings = strcmp(argc > 2 ? argv[2] : "0", "0") != 0;
    REQUIRE(rings ? written > MESSAGES / 2 : written == 0, "%llu messages were written into rings", written);
    marks(session, prefix, rank, rings);
    MPI_T_pvar_handle_free(session, &sent);
    MPI_T_pvar_session_free(&session);
    MPI_T_finalize(); /* here and not after MPI_Finalize, where Open MPI 4.1 crashes over any transport */
    finish("counters");
    return 0;
}
