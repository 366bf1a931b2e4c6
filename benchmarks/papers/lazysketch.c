/* The paper's sketches as it prints them, one core: a plain Count-Min, and the two whose cells are counters of the binary mechanism.
   benchmarks/papers/lazysketch.py compiles this and times it; noise is drawn as they draw it, estimates are read nowhere. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static uint64_t seed[2] = {0x9E3779B97F4A7C15ull, 0xD1B54A32D192ED03ull};

static inline uint64_t word(void) {
    uint64_t a = seed[0], b = seed[1];
    seed[0] = b;
    a ^= a << 23;
    return (seed[1] = a ^ b ^ (a >> 17) ^ (b >> 26)) + b;
}

static double spare;
static int has_spare;

static inline double normal(void) { /* polar method */
    if (has_spare) { has_spare = 0; return spare; }
    double u, v, q;
    do {
        u = 2 * ((word() >> 11) * 0x1p-53) - 1;
        v = 2 * ((word() >> 11) * 0x1p-53) - 1;
        q = u * u + v * v;
    } while (q >= 1 || q == 0);
    q = sqrt(-2 * log(q) / q);
    spare = v * q;
    has_spare = 1;
    return u * q;
}

enum { LEVELS = 24 };
typedef struct { uint32_t pushed; int64_t since; int64_t exact[LEVELS]; double noise[LEVELS]; double shown; } counter;

static inline void push(counter *c, double sigma) { /* one leaf: the nodes that it completes become one, with noise of its own */
    int top = __builtin_ctz(++c->pushed);
    int64_t sum = c->since;
    c->since = 0;
    for (int level = 0; level < top; level++) sum += c->exact[level];
    c->exact[top] = sum;
    c->noise[top] = normal() * sigma;
    double shown = 0;
    for (uint32_t left = c->pushed; left; left &= left - 1) {
        int level = __builtin_ctz(left);
        shown += c->exact[level] + c->noise[level];
    }
    c->shown = shown;
}

static inline uint32_t column(uint64_t x, int row, uint32_t width) {
    static const uint64_t odd[9] = {0x9E3779B97F4A7C15ull, 0xC2B2AE3D27D4EB4Full, 0x165667B19E3779F9ull, 0x27D4EB2F165667C5ull, 0x85EBCA77C2B2AE63ull,
                                    0x2545F4914F6CDD1Dull, 0xD6E8FEB86659FD93ull, 0xA0761D6478BD642Full, 0xE7037ED1A0B428DBull};
    return (uint32_t)((((x + 1) * odd[row]) >> 32) * width >> 32);
}

/* kind 0: no noise; 1: lazy, column t mod w is pushed at arrival t; 2: punctual, every cell at every arrival. Returns something of the result. */
double updates(const int64_t *x, long size, int depth, uint32_t width, int kind, double sigma) {
    double out = 0;
    if (kind == 0) {
        int64_t *cells = calloc((size_t)depth * width, sizeof *cells);
        for (long t = 0; t < size; t++)
            for (int row = 0; row < depth; row++) cells[(size_t)row * width + column((uint64_t)x[t], row, width)]++;
        for (size_t i = 0; i < (size_t)depth * width; i++) out += (double)cells[i] * (double)(i + 1);
        free(cells);
        return out;
    }
    counter *cells = calloc((size_t)depth * width, sizeof *cells);
    for (long t = 0; t < size; t++) {
        for (int row = 0; row < depth; row++) cells[(size_t)row * width + column((uint64_t)x[t], row, width)].since++;
        if (kind == 1)
            for (int row = 0; row < depth; row++) push(&cells[(size_t)row * width + (uint32_t)(t % width)], sigma);
        else
            for (size_t i = 0; i < (size_t)depth * width; i++) push(&cells[i], sigma);
    }
    for (size_t i = 0; i < (size_t)depth * width; i++) out += cells[i].shown;
    free(cells);
    return out;
}
