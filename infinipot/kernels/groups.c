/* Products with weights in groups of 32 whole numbers, on a CPU.

   Weight [n, k] is numbers[n, k] * scale[n, k / 32], in four bits plus low[n, k / 32]. Byte i of a
   group in four bits holds number i below and number i + 16 above. Scales are float16; low is NULL
   for eight bits. Instead of both, weights in four bits may have blocks of eight groups, with a header
   as GGUF's Q4_K has it. `native.py` compiles this file, and `model/groups.py` has the same in torch. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GROUP 32
#define BLOCK 8 /* groups */
#define HEADER 16

/* The weights of an output layer, and how many groups an output has. blocks: the headers, or NULL. */
typedef struct {
    const uint8_t *numbers;
    const uint16_t *scale, *low;
    const uint8_t *blocks;
    long outputs, groups;
    int bits;
} Weights;

/* Eight scales and eight least values of six bits each, a byte for each. packed: as a
   header has them. */
static inline void six_bits(const uint8_t *packed, uint8_t *scale, uint8_t *low) {
    uint32_t first, second, third;
    memcpy(&first, packed, 4);
    memcpy(&second, packed + 4, 4);
    memcpy(&third, packed + 8, 4);
    const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
    const uint32_t parts[4] = {first & six, (third & four) | (first >> 6 & two) << 4, second & six,
                               (third >> 4 & four) | (second >> 6 & two) << 4};
    memcpy(scale, parts, 8);
    memcpy(low, parts + 2, 8);
}

/* tests define PLAIN */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(PLAIN)
#include "groups_avx2.h"
#else
#include "groups_plain.h"
#endif

/* The most rows of one call of `products`, and the bytes of room it needs for so many rows. */
long most_rows(void) { return MOST_ROWS; }
long room_bytes(long rows, long groups) { return (rows + 3) / 4 * 4 * groups * ROOM; }

static Weights weights_of(const uint8_t *numbers, const uint16_t *scale, const uint16_t *low,
                          const uint8_t *blocks, long outputs, long groups) {
    const Weights w = {numbers, scale, low, blocks, outputs, groups, low || blocks ? 4 : 8};
    return w;
}

/* Scale and least value of the group at `place`. */
static void range_of(const Weights *w, long place, float *scale, float *low) {
    if (w->blocks) {
        const uint8_t *header = w->blocks + place / BLOCK * HEADER;
        uint16_t factors[2];
        uint8_t own[BLOCK], least[BLOCK];
        memcpy(factors, header, 4);
        six_bits(header + 4, own, least);
        *scale = half(factors[0]) * own[place % BLOCK];
        *low = -half(factors[1]) * least[place % BLOCK];
    } else {
        *scale = half(w->scale[place]);
        *low = w->low ? half(w->low[place]) : 0;
    }
}

/* x: [rows, groups * 32], at most MOST_ROWS rows. y: [rows, outputs]. room: see `room_bytes`. */
void products(long rows, const float *x, void *room, const uint8_t *numbers, const uint16_t *scale,
              const uint16_t *low, const uint8_t *blocks, float *y, long outputs, long groups,
              int threads) {
    const Weights weights = weights_of(numbers, scale, low, blocks, outputs, groups);
    multiply(rows, x, room, &weights, y, threads);
}

/* The weights as float32: [outputs, groups * 32]. */
void unpack(const uint8_t *numbers, const uint16_t *scale, const uint16_t *low,
            const uint8_t *blocks, float *out, long outputs, long groups, int threads) {
    const Weights weights = weights_of(numbers, scale, low, blocks, outputs, groups);
    _Pragma("omp parallel for num_threads(threads) schedule(static)")
    for (long place = 0; place < outputs * groups; place++) {
        float factor, least;
        range_of(&weights, place, &factor, &least);
        float *to = out + place * GROUP;
        if (weights.bits == 8) {
            const int8_t *from = (const int8_t *)numbers + place * GROUP;
            for (int i = 0; i < GROUP; i++) to[i] = from[i] * factor;
        } else {
            const uint8_t *from = numbers + place * GROUP / 2;
            for (int i = 0; i < GROUP / 2; i++) to[i] = (from[i] & 15) * factor + least;
            for (int i = 0; i < GROUP / 2; i++) to[i + GROUP / 2] = (from[i] >> 4) * factor + least;
        }
    }
}
