/* The tool interface, opened and closed before MPI, and open while it begins: control variables of the transport that the first
 * argument names are found each time, with the same number; traffic flows in between. */
#include "check.h"

/* How many control variables begin with `prefix`. */
static int variables(const char *prefix) {
    int count, found = 0;
    MPI_T_cvar_get_num(&count);
    for (int n = 0; n < count; n++) {
        char name[256], about[4096];
        int room = sizeof name, space = sizeof about, verbosity, binding, scope;
        MPI_Datatype type;
        MPI_T_enum values;
        if (MPI_T_cvar_get_info(n, name, &room, &verbosity, &type, &values, about, &space, &binding, &scope) != MPI_SUCCESS) continue;
        found += strncmp(name, prefix, strlen(prefix)) == 0;
    }
    return found;
}

static int session(const char *prefix) {
    int provided, found;
    REQUIRE(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) == MPI_SUCCESS, "MPI_T_init_thread failed");
    found = variables(prefix);
    REQUIRE(MPI_T_finalize() == MPI_SUCCESS, "MPI_T_finalize failed");
    return found;
}

int main(int argc, char **argv) {
    int rank, ranks, sum, provided;
    const char *prefix = argc > 1 ? argv[1] : "btl_";
    int before = session(prefix), again = session(prefix);
    REQUIRE(before > 5, "%d variables begin with %s before MPI_Init", before, prefix);
    REQUIRE(again == before, "the second time there are %d variables, not %d", again, before);
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    start(&argc, &argv, &rank, &ranks);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    REQUIRE(sum == ranks * (ranks - 1) / 2, "wrong sum %d", sum);
    int during = variables(prefix);
    REQUIRE(during >= before, "only %d variables, of %d, while MPI runs", during, before);
    MPI_T_finalize(); /* here and not after MPI_Finalize, where Open MPI 4.1 crashes over any transport */
    if (rank == 0) printf("PASS tools\n");
    MPI_Finalize();
    return 0;
}
