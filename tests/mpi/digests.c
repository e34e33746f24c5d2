/* 50,000 messages of random sizes each way between two ranks, in waves: the SHA-256 (FIPS 180-4) of what one has sent is that of what the
 * other has received. */
#include "check.h"

enum { MESSAGES = 50000, WAVE = 50, MOST = 70000 };

struct digest { uint32_t h[8]; uint64_t bytes; unsigned char block[64]; };

static const uint32_t PRIMES[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void take_block(uint32_t *h, const unsigned char *block) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + PRIMES[i] + w[i];
        uint32_t two = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

static void begin(struct digest *d) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(d->h, first, sizeof first);
    d->bytes = 0;
}

static void take(struct digest *d, const unsigned char *data, size_t size) {
    for (size_t done = 0; done < size;) {
        size_t at = d->bytes % 64, n = 64 - at < size - done ? 64 - at : size - done;
        memcpy(d->block + at, data + done, n);
        d->bytes += n;
        done += n;
        if (d->bytes % 64 == 0) take_block(d->h, d->block);
    }
}

static void end(struct digest *d) {
    uint64_t bits = d->bytes * 8;
    unsigned char pad[72] = {0x80};
    size_t zeroes = (119 - d->bytes % 64) % 64;
    for (int i = 0; i < 8; i++) pad[1 + zeroes + i] = (unsigned char)(bits >> (56 - 8 * i));
    take(d, pad, 1 + zeroes + 8);
}

static void known_answer(void) {
    static const uint32_t abc[8] = {0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223, 0xb00361a3, 0x96177a9c, 0xb410ff61, 0xf20015ad};
    struct digest d;
    begin(&d);
    take(&d, (const unsigned char *)"abc", 3);
    end(&d);
    REQUIRE(memcmp(d.h, abc, sizeof abc) == 0, "SHA-256 of \"abc\" is wrong");
}

static size_t size_of(int from, int n) {
    uint64_t r = seed_of((uint64_t)from, (uint64_t)n, 1, 2);
    return r % 50 ? mix(r) % 600 : mix(r) % MOST;
}

int main(int argc, char **argv) {
    int rank, ranks;
    start(&argc, &argv, &rank, &ranks);
    known_answer();
    int other = 1 - rank;
    unsigned char *out[WAVE], *in[WAVE];
    for (int i = 0; i < WAVE; i++) out[i] = memory(MOST), in[i] = memory(MOST);
    struct digest sent, received;
    begin(&sent);
    begin(&received);
    for (int first = 0; first < MESSAGES; first += WAVE) {
        MPI_Request requests[2 * WAVE];
        MPI_Status states[2 * WAVE];
        for (int i = 0; i < WAVE; i++) MPI_Irecv(in[i], MOST, MPI_BYTE, other, 0, MPI_COMM_WORLD, &requests[i]);
        for (int i = 0; i < WAVE; i++) {
            size_t size = size_of(rank, first + i);
            fill(out[i], size, seed_of((uint64_t)rank, (uint64_t)(first + i), 3, 4));
            take(&sent, out[i], size);
            MPI_Isend(out[i], (int)size, MPI_BYTE, other, 0, MPI_COMM_WORLD, &requests[WAVE + i]);
        }
        MPI_Waitall(2 * WAVE, requests, states);
        for (int i = 0; i < WAVE; i++) {
            int count;
            MPI_Get_count(&states[i], MPI_BYTE, &count);
            take(&received, in[i], (size_t)count);
        }
    }
    end(&sent);
    end(&received);
    uint32_t theirs[8];
    MPI_Sendrecv(sent.h, 8, MPI_UINT32_T, other, 1, theirs, 8, MPI_UINT32_T, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    REQUIRE(memcmp(theirs, received.h, sizeof theirs) == 0, "the digests of what was sent and of what was received differ");
    finish("digests");
    return 0;
}
