/* Collectives against results computed locally, blocking and nonblocking, at sizes where algorithms and protocols change. */
#include "check.h"

static int rank, ranks;
static const int counts[] = {1, 7, 128, 1000, 9000, 100000};

static long value(int who, int i) { return (long)(mix((uint64_t)who * 1000003u + (uint64_t)i) % 100000); }

static long *numbers(size_t count) { return memory((count ? count : 1) * sizeof(long)); }

static long *mine(int count) {
    long *out = numbers((size_t)count);
    for (int i = 0; i < count; i++) out[i] = value(rank, i);
    return out;
}

static void expect(long got, long want, const char *what, int count, int at) {
    REQUIRE(got == want, "%s of %d: element %d is %ld, not %ld", what, count, at, got, want);
}

static long sum_at(int i, int upto) {
    long sum = 0;
    for (int r = 0; r < upto; r++) sum += value(r, i);
    return sum;
}

static void reductions(int count) {
    long *out = mine(count), *in = numbers((size_t)count);
    MPI_Request request;
    MPI_Allreduce(out, in, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) expect(in[i], sum_at(i, ranks), "allreduce", count, i);
    memset(in, 0, (size_t)count * sizeof *in);
    MPI_Iallreduce(out, in, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; i++) expect(in[i], sum_at(i, ranks), "iallreduce", count, i);
    MPI_Reduce(out, in, count, MPI_LONG, MPI_SUM, ranks - 1, MPI_COMM_WORLD);
    for (int i = 0; i < count && rank == ranks - 1; i++) expect(in[i], sum_at(i, ranks), "reduce", count, i);
    MPI_Scan(out, in, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) expect(in[i], sum_at(i, rank + 1), "scan", count, i);
    free(out), free(in);
}

static void one_to_all(int count) {
    long *data = numbers((size_t)count), *all = numbers((size_t)count * (size_t)ranks);
    for (int root = 0; root < ranks; root++) {
        for (int i = 0; i < count; i++) data[i] = rank == root ? value(root, i) : -1;
        MPI_Bcast(data, count, MPI_LONG, root, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++) expect(data[i], value(root, i), "bcast", count, i);
        for (int i = 0; i < count * ranks; i++) all[i] = value(root, i);
        MPI_Scatter(all, count, MPI_LONG, data, count, MPI_LONG, root, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++) expect(data[i], value(root, rank * count + i), "scatter", count, i);
    }
    free(data), free(all);
}

static void all_to_one(int count) {
    long *out = mine(count), *all = numbers((size_t)count * (size_t)ranks);
    MPI_Allgather(out, count, MPI_LONG, all, count, MPI_LONG, MPI_COMM_WORLD);
    for (int i = 0; i < count * ranks; i++) expect(all[i], value(i / count, i % count), "allgather", count, i);
    memset(all, 0, (size_t)(count * ranks) * sizeof *all);
    MPI_Gather(out, count, MPI_LONG, all, count, MPI_LONG, 0, MPI_COMM_WORLD);
    for (int i = 0; i < count * ranks && rank == 0; i++) expect(all[i], value(i / count, i % count), "gather", count, i);
    free(out), free(all);
}

static void all_to_all(int count) {
    long *out = numbers((size_t)count * (size_t)ranks), *in = numbers((size_t)count * (size_t)ranks);
    for (int i = 0; i < count * ranks; i++) out[i] = value(rank * ranks + i / count, i % count);
    MPI_Alltoall(out, count, MPI_LONG, in, count, MPI_LONG, MPI_COMM_WORLD);
    for (int i = 0; i < count * ranks; i++)
        expect(in[i], value(i / count * ranks + rank, i % count), "alltoall", count, i);
    free(out), free(in);
}

/* Parts of different length: rank r contributes r + 1 times as much as rank 0. */
static void uneven(int count) {
    int lengths[64] = {0}, places[64] = {0}, total = 0;
    REQUIRE(ranks <= 64, "at most 64 ranks");
    for (int r = 0; r < ranks; total += lengths[r++]) lengths[r] = count * (r + 1), places[r] = total;
    long *out = mine(lengths[rank]), *all = numbers((size_t)total);
    MPI_Allgatherv(out, lengths[rank], MPI_LONG, all, lengths, places, MPI_LONG, MPI_COMM_WORLD);
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < lengths[r]; i++) expect(all[places[r] + i], value(r, i), "allgatherv", count, places[r] + i);
    free(out), free(all);
}

int main(int argc, char **argv) {
    start(&argc, &argv, &rank, &ranks);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        reductions(counts[i]);
        one_to_all(counts[i]);
        all_to_one(counts[i]);
        all_to_all(counts[i]);
        uneven(counts[i]);
    }
    for (int i = 0; i < 200; i++) MPI_Barrier(MPI_COMM_WORLD);
    finish("collectives");
    return 0;
}
