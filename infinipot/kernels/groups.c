/* Products with weights in groups of 32 whole numbers, on a CPU.

   Weight [n, k] is numbers[n, k] * scale[n, k / 32], in four bits plus low[n, k / 32]. Byte i of a
   group in four bits holds number i below and number i + 16 above. Scales are float16; low is NULL
   for eight bits. `native.py` compiles this file, and `model/groups.py` has the same in torch. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GROUP 32

/* The weights of an output layer, and how many groups an output has. */
typedef struct {
    const uint8_t *numbers;
    const uint16_t *scale, *low;
    long outputs, groups;
} Weights;

/* tests define PLAIN */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(PLAIN)
#include "groups_avx2.h"
#else
#include "groups_plain.h"
#endif

/* The most rows of one call of `products`, and the bytes of room it needs for so many rows. */
long most_rows(void) { return MOST_ROWS; }
long room_bytes(long rows, long groups) { return (rows + 3) / 4 * 4 * groups * ROOM; }

/* x: [rows, groups * 32], at most MOST_ROWS rows. y: [rows, outputs]. room: see `room_bytes`. */
void products(long rows, const float *x, void *room, const uint8_t *numbers, const uint16_t *scale,
              const uint16_t *low, float *y, long outputs, long groups, int threads) {
    const Weights weights = {numbers, scale, low, outputs, groups};
    multiply(rows, x, room, &weights, y, threads);
}

/* The weights as float32: [outputs, groups * 32]. */
void unpack(const uint8_t *numbers, const uint16_t *scale, const uint16_t *low, float *out,
            long outputs, long groups, int threads) {
    const int bits = low ? 4 : 8;
    _Pragma("omp parallel for num_threads(threads) schedule(static)")
    for (long place = 0; place < outputs * groups; place++) {
        const float factor = half(scale[place]);
        const float least = low ? half(low[place]) : 0;
        float *to = out + place * GROUP;
        if (bits == 8) {
            const int8_t *from = (const int8_t *)numbers + place * GROUP;
            for (int i = 0; i < GROUP; i++) to[i] = from[i] * factor;
        } else {
            const uint8_t *from = numbers + place * GROUP / 2;
            for (int i = 0; i < GROUP / 2; i++) to[i] = (from[i] & 15) * factor + least;
            for (int i = 0; i < GROUP / 2; i++) to[i + GROUP / 2] = (from[i] >> 4) * factor + least;
        }
    }
}
