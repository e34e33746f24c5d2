/* A list that spans all ranks, in a dynamic window: every rank appends to its end with compare-and-swap and fetch-and-op under
 * shared locks, and between two elements probes for messages that never come.
 *
 *     next.rank   -1 -> rank of the appended element     compare-and-swap: the rank that finds -1 has the place
 *     next.at      0 -> its address                      replaced after that; the others wait until it is there
 *
 * Ranks answer each other while they themselves wait, and some are asked by ranks that they have sent nothing to. */
#include "check.h"

enum { ELEMENTS = 32, PROBES = 100, NOBODY = -1, HEAD = -1 };

typedef struct {
    int rank;
    MPI_Aint at;
} link_t;

typedef struct {
    int owner, number;
    link_t next;
} element_t;

static int rank, ranks;
static MPI_Win window;

static link_t element(element_t *memory, int owner, int number) {
    link_t link = {.rank = rank};
    *memory = (element_t){.owner = owner, .number = number, .next = {NOBODY, 0}};
    MPI_Win_attach(window, memory, sizeof *memory);
    MPI_Get_address(memory, &link.at);
    return link;
}

static MPI_Aint field(link_t element, size_t offset) { return MPI_Aint_add(element.at, (MPI_Aint)offset); }

/* The rank that follows `last`, or NOBODY: then our element does now. */
static int take_place(link_t last, int ours) {
    int nobody = NOBODY, found = NOBODY;
    MPI_Win_lock(MPI_LOCK_SHARED, last.rank, MPI_MODE_NOCHECK, window);
    MPI_Compare_and_swap(&ours, &nobody, &found, MPI_INT, last.rank, field(last, offsetof(element_t, next.rank)), window);
    MPI_Win_unlock(last.rank, window);
    return found;
}

static MPI_Aint address(link_t last, MPI_Op operation, MPI_Aint ours) {
    MPI_Aint found = 0;
    MPI_Win_lock(MPI_LOCK_SHARED, last.rank, MPI_MODE_NOCHECK, window);
    MPI_Fetch_and_op(&ours, &found, MPI_AINT, last.rank, field(last, offsetof(element_t, next.at)), operation, window);
    MPI_Win_unlock(last.rank, window);
    return found;
}

/* Appends an element behind the last one, which is looked for from `last` on. */
static link_t append(link_t last, link_t ours) {
    link_t next;
    while ((next.rank = take_place(last, ours.rank)) != NOBODY) {
        while ((next.at = address(last, MPI_NO_OP, 0)) == 0) continue;
        last = next;
    }
    address(last, MPI_REPLACE, ours.at);
    return ours;
}

static void probe(void) {
    for (int i = 0, found; i < PROBES; i++) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
        REQUIRE(!found, "a message that was never sent");
    }
}

/* Every rank's elements are there, each once, in the order in which they were appended. */
static void verify_list(link_t at) {
    int *next = memory((size_t)ranks * sizeof *next), count = 0;
    memset(next, 0, (size_t)ranks * sizeof *next);
    while (at.rank != NOBODY) {
        element_t found;
        MPI_Win_lock(MPI_LOCK_SHARED, at.rank, 0, window);
        MPI_Get(&found, sizeof found, MPI_BYTE, at.rank, at.at, sizeof found, MPI_BYTE, window);
        MPI_Win_unlock(at.rank, window);
        at = found.next;
        if (found.owner == HEAD) continue;
        REQUIRE(found.owner >= 0 && found.owner < ranks, "an element of rank %d", found.owner);
        REQUIRE(found.number == next[found.owner]++, "element %d of rank %d", found.number, found.owner);
        count++;
    }
    REQUIRE(count == ranks * ELEMENTS, "%d elements, not %d", count, ranks * ELEMENTS);
    free(next);
}

int main(int argc, char **argv) {
    static element_t head_memory, memory_of[ELEMENTS];
    link_t head = {.rank = 0}, last;
    start(&argc, &argv, &rank, &ranks);
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    if (rank == 0) head = element(&head_memory, HEAD, 0);
    MPI_Bcast(&head.at, 1, MPI_AINT, 0, MPI_COMM_WORLD);
    last = head;
    for (int i = 0; i < ELEMENTS; i++) {
        last = append(last, element(&memory_of[i], rank, i));
        probe();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) verify_list(head);
    MPI_Win_free(&window);
    finish("linkedlist");
    return 0;
}
