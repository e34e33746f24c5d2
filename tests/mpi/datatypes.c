/* Derived datatypes: what is described arrives, what lies between stays untouched. Each type is sent as a type and received
 * both as the same type and as packed bytes, in sizes below and above the eager limits. */
#include <stddef.h>

#include "check.h"

typedef struct {
    double weight;
    char letter;
    int numbers[3];
} Mixed;

static int rank, ranks;

static MPI_Datatype mixed_type(void) {
    MPI_Datatype raw, type;
    int lengths[3] = {1, 1, 3};
    MPI_Aint places[3] = {offsetof(Mixed, weight), offsetof(Mixed, letter), offsetof(Mixed, numbers)};
    MPI_Datatype kinds[3] = {MPI_DOUBLE, MPI_CHAR, MPI_INT};
    MPI_Type_create_struct(3, lengths, places, kinds, &raw);
    MPI_Type_create_resized(raw, 0, sizeof(Mixed), &type);
    MPI_Type_commit(&type);
    MPI_Type_free(&raw);
    return type;
}

/* Sends `count` of `type` around the ring out of a region of `extent` bytes; checks it against MPI_Pack's idea of the data. */
static void around(MPI_Datatype type, int count, size_t extent, int tag, const char *name) {
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks, packed_size, position = 0;
    unsigned char *out = memory(extent), *in = memory(extent), *want = memory(extent);
    fill(out, extent, seed_of((uint64_t)rank, 1, (uint64_t)tag, 0));
    fill(want, extent, seed_of((uint64_t)left, 1, (uint64_t)tag, 0));
    MPI_Pack_size(count, type, MPI_COMM_WORLD, &packed_size);
    unsigned char *packed = memory((size_t)packed_size), *as_bytes = memory((size_t)packed_size);
    MPI_Pack(want, count, type, packed, packed_size, &position, MPI_COMM_WORLD);

    memset(in, 0x5a, extent);
    MPI_Sendrecv(out, count, type, right, tag, in, count, type, left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(out, count, type, right, tag, as_bytes, packed_size, MPI_PACKED, left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    REQUIRE(memcmp(as_bytes, packed, (size_t)position) == 0, "%s as bytes differs from what MPI_Pack made of it", name);

    unsigned char *expected = memory(extent);
    memset(expected, 0x5a, extent);
    int from = 0;
    MPI_Unpack(packed, packed_size, &from, expected, count, type, MPI_COMM_WORLD);
    for (size_t i = 0; i < extent; i++)
        REQUIRE(in[i] == expected[i], "%s: byte %zu of %zu is 0x%02x, not 0x%02x", name, i, extent, in[i], expected[i]);
    free(out), free(in), free(want), free(packed), free(as_bytes), free(expected);
}

static void vectors(int tag) {
    static const int blocks[] = {1, 10, 700, 20000};
    for (int i = 0; i < 4; i++) {
        MPI_Datatype type;
        MPI_Type_vector(blocks[i], 3, 7, MPI_INT, &type);
        MPI_Type_commit(&type);
        around(type, 1, (size_t)blocks[i] * 7 * sizeof(int), tag + i, "a vector");
        MPI_Type_free(&type);
    }
}

static void indexed(int tag) {
    enum { PIECES = 300 };
    int lengths[PIECES], places[PIECES], at = 0;
    for (int i = 0; i < PIECES; i++) {
        lengths[i] = 1 + (int)(mix((uint64_t)i) % 200);
        places[i] = at + (int)(mix((uint64_t)i + 1000) % 50);
        at = places[i] + lengths[i];
    }
    MPI_Datatype type;
    MPI_Type_indexed(PIECES, lengths, places, MPI_SHORT, &type);
    MPI_Type_commit(&type);
    around(type, 1, (size_t)at * sizeof(short), tag, "an indexed type");
    MPI_Type_free(&type);
}

static void subarrays(int tag) {
    int sizes[3] = {40, 50, 60}, parts[3] = {20, 30, 40}, from[3] = {5, 6, 7};
    MPI_Datatype type;
    MPI_Type_create_subarray(3, sizes, parts, from, MPI_ORDER_C, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    around(type, 1, 40 * 50 * 60 * sizeof(double), tag, "a subarray");
    MPI_Type_free(&type);
}

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    vectors(10);
    indexed(20);
    subarrays(30);
    MPI_Datatype mixed = mixed_type();
    around(mixed, 1, sizeof(Mixed), 40, "a struct");
    around(mixed, 5000, 5000 * sizeof(Mixed), 41, "structs");
    MPI_Type_free(&mixed);
    finish("datatypes");
    return 0;
}
