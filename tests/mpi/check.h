/* Shared by the MPI programs of this folder: data that cannot be mistaken for other data, and one way to fail.
 *
 * A payload is a function of (seed, length): the receiver computes what must have come and compares every byte.
 * Seeds are made of who, what and when (`seed_of`), so a stale, swapped or repeated message never matches.
 * A failure prints one line that starts with "FAIL" and ends the job with code 3. */
#ifndef OXIB_CHECK_H
#define OXIB_CHECK_H

#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The length of a message that no eager limit admits: it begins with a request, and is fetched or written from there. */
enum { RENDEZVOUS = 50000 };

static int check_rank = -1;

static void fail(const char *format, ...) {
    va_list args;
    char text[512];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "FAIL rank %d: %s\n", check_rank, text);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 3);
    exit(3);
}

#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) fail(__VA_ARGS__);                                                                           \
    } while (0)

/* splitmix64: every bit of the seed reaches every bit of the result. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t seed_of(uint64_t from, uint64_t to, uint64_t what, uint64_t when) {
    return mix(mix(mix(mix(from) + to) + what) + when);
}

static inline uint64_t pattern_word(uint64_t seed, size_t word) {
    uint64_t x = (seed + word) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
}

static void fill(void *buffer, size_t length, uint64_t seed) {
    unsigned char *out = buffer;
    size_t word = 0;
    for (; (word + 1) * 8 <= length; word++) {
        uint64_t value = pattern_word(seed, word);
        memcpy(out + word * 8, &value, 8);
    }
    uint64_t last = pattern_word(seed, word);
    memcpy(out + word * 8, &last, length - word * 8);
}

/* Offset of the first wrong byte, or `length`. */
static size_t first_difference(const void *buffer, size_t length, uint64_t seed) {
    const unsigned char *in = buffer;
    for (size_t word = 0; word * 8 < length; word++) {
        uint64_t value = pattern_word(seed, word);
        size_t here = length - word * 8 < 8 ? length - word * 8 : 8;
        if (memcmp(in + word * 8, &value, here) == 0) continue;
        const unsigned char *want = (const unsigned char *)&value;
        for (size_t i = 0; i < here; i++)
            if (in[word * 8 + i] != want[i]) return word * 8 + i;
    }
    return length;
}

static void verify(const void *buffer, size_t length, uint64_t seed, const char *what) {
    size_t at = first_difference(buffer, length, seed);
    if (at == length) return;
    uint64_t want = pattern_word(seed, at / 8);
    fail("%s: byte %zu of %zu is 0x%02x, not 0x%02x", what, at, length, ((const unsigned char *)buffer)[at],
         ((const unsigned char *)&want)[at % 8]);
}

static void *memory(size_t length) {
    void *p = malloc(length ? length : 1);
    REQUIRE(p != NULL, "out of memory: %zu bytes", length);
    return p;
}

/* MPI_Init, or MPI_Init_thread with the level that the environment names. */
static void initialize(int *argc, char ***argv) {
    static const char *const names[] = {"single", "funneled", "serialized", "multiple"};
    static const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    const char *wanted = getenv("TEST_THREAD_LEVEL");
    int level = 0, provided;
    if (wanted == NULL) {
        MPI_Init(argc, argv);
        return;
    }
    while (level < 3 && strcmp(wanted, names[level]) != 0) level++;
    MPI_Init_thread(argc, argv, levels[level], &provided);
    REQUIRE(strcmp(wanted, names[level]) == 0 && provided >= levels[level], "thread level %s is not provided", wanted);
}

/* MPI_Init, the two numbers every program wants, and the rank for messages. */
static void start(int *argc, char ***argv, int *rank, int *size) {
    initialize(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
    check_rank = *rank;
}

/* All ranks got here: rank 0 says so, and the job ends. */
static void finish(const char *name) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (check_rank == 0) printf("PASS %s\n", name);
    fflush(stdout);
    MPI_Finalize();
}

/* The sizes around which transports change their mind: inline, eager, send and pipeline limits, give or take one. */
static const int edge_sizes[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 114, 115, 127, 128, 129, 192, 255, 256, 257, 511, 512,
                                 513, 1023, 1024, 1025, 2047, 2048, 2049, 4031, 4032, 4033, 4095, 4096, 4097, 8191,
                                 8192, 8193, 12287, 12288, 12289, 16384, 24554, 24555, 32767, 32768, 32769, 65472,
                                 65535, 65536, 65537, 65650, 65651, 131071, 131072, 131073, 262144, 300001, 1048576};
#define EDGE_SIZES ((int)(sizeof edge_sizes / sizeof *edge_sizes))

#endif
