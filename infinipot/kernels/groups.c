/* Products with weights in groups of 32 whole numbers, on a CPU.

   Weight [n, k] is numbers[n, k] * scale[n, k / 32], in four bits plus low[n, k / 32]. Byte i of a
   group in four bits holds number i below and number i + 16 above. Scales are float16. All sums are
   float32. `native.py` compiles this file, and `model/groups.py` has the same in torch. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GROUP 32
#define ROWS 4 /* rows of x that share one pass over the weights */

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef int8_t b8 __attribute__((vector_size(8)));

static inline f8 load(const float *p) {
    f8 v;
    memcpy(&v, p, 32);
    return v;
}

static inline float sum(f8 v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>

static inline float half(uint16_t h) { return _cvtsh_ss(h); }

static inline f8 floats(__m128i bytes) {
    return (f8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

/* The numbers of one group as float32. */
static inline void numbers_of(const uint8_t *group, int bits, f8 *w) {
    __m128i first = _mm_loadu_si128((const __m128i *)group);
    __m128i second;
    if (bits == 4) {
        const __m128i mask = _mm_set1_epi8(15);
        second = _mm_and_si128(_mm_srli_epi16(first, 4), mask);
        first = _mm_and_si128(first, mask);
    } else {
        second = _mm_loadu_si128((const __m128i *)(group + 16));
    }
    w[0] = floats(first);
    w[1] = floats(_mm_unpackhi_epi64(first, first));
    w[2] = floats(second);
    w[3] = floats(_mm_unpackhi_epi64(second, second));
}
#else
/* float16 -> float32, finite numbers */
static inline float half(uint16_t h) {
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
    float size;
    memcpy(&size, &bits, 4);
    size *= 0x1p112f;
    return h & 0x8000 ? -size : size;
}

static inline void numbers_of(const uint8_t *group, int bits, f8 *w) {
    int8_t bytes[GROUP];
    memcpy(bytes, group, bits == 4 ? GROUP / 2 : GROUP);
    for (int i = 0; bits == 4 && i < GROUP / 2; i++) {
        bytes[i + GROUP / 2] = (int8_t)(group[i] >> 4);
        bytes[i] = (int8_t)(group[i] & 15);
    }
    for (int part = 0; part < 4; part++) {
        b8 eight;
        memcpy(&eight, bytes + 8 * part, 8);
        w[part] = __builtin_convertvector(__builtin_convertvector(eight, i8), f8);
    }
}
#endif

/* y[m, n] for `rows` rows of x. sums[m, g]: the sum of each group of x, for four bits. */
static inline __attribute__((always_inline)) void row_products(
    int rows, int bits, const float *x, const float *sums, const uint8_t *numbers,
    const uint16_t *scale, const uint16_t *low, float *y, long outputs, long groups, long n) {
    const long bytes = bits == 4 ? GROUP / 2 : GROUP;
    f8 total[ROWS][2] = {{{0}}};
    float shift[ROWS] = {0};
    for (long g = 0; g < groups; g++) {
        const long place = n * groups + g;
        f8 w[4];
        numbers_of(numbers + place * bytes, bits, w);
        const float factor = half(scale[place]);
        const float least = bits == 4 ? half(low[place]) : 0;
        for (int m = 0; m < rows; m++) {
            const float *p = x + (m * groups + g) * GROUP;
            total[m][0] += (w[0] * load(p) + w[1] * load(p + 8)) * factor;
            total[m][1] += (w[2] * load(p + 16) + w[3] * load(p + 24)) * factor;
            if (bits == 4) shift[m] += least * sums[m * groups + g];
        }
    }
    for (int m = 0; m < rows; m++) y[m * outputs + n] = sum(total[m][0] + total[m][1]) + shift[m];
}

#define EACH_OUTPUT(count, bits)                                                              \
    _Pragma("omp parallel for num_threads(threads) schedule(static)")                         \
    for (long n = 0; n < outputs; n++)                                                        \
        row_products(count, bits, x, sums, numbers, scale, low, y, outputs, groups, n);       \
    break

#define EACH_COUNT(bits)                                                                      \
    switch (rows) {                                                                           \
    case 1: EACH_OUTPUT(1, bits);                                                             \
    case 2: EACH_OUTPUT(2, bits);                                                             \
    case 3: EACH_OUTPUT(3, bits);                                                             \
    default: EACH_OUTPUT(4, bits);                                                            \
    }

/* x: [rows, groups * 32], 1 to 4 rows. y: [rows, outputs]. low is NULL for eight bits. */
void products(long rows, const float *x, const float *sums, const uint8_t *numbers,
              const uint16_t *scale, const uint16_t *low, float *y, long outputs, long groups,
              int threads) {
    if (low) {
        EACH_COUNT(4)
    } else {
        EACH_COUNT(8)
    }
}

/* The weights as float32: [outputs, groups * 32]. */
void unpack(const uint8_t *numbers, const uint16_t *scale, const uint16_t *low, float *out,
            long outputs, long groups, int threads) {
    const int bits = low ? 4 : 8;
    _Pragma("omp parallel for num_threads(threads) schedule(static)")
    for (long n = 0; n < outputs; n++) {
        for (long place = n * groups; place < (n + 1) * groups; place++) {
            f8 w[4];
            numbers_of(numbers + place * (bits == 4 ? GROUP / 2 : GROUP), bits, w);
            const float factor = half(scale[place]);
            const float least = low ? half(low[place]) : 0;
            for (int part = 0; part < 4; part++) {
                f8 value = w[part] * factor + least;
                memcpy(out + place * GROUP + 8 * part, &value, 32);
            }
        }
    }
}
