/* The products on x86-64 with AVX2.

   Each group of 32 activations is rounded to 16 bits: an activation changes by at most 1 / 65,534
   of the largest in its group. Sums within a group are then exact, in int32, and an instruction
   multiplies 16 pairs of numbers instead of 8. The sum over groups is float32, group after group,
   whichever function computes it: a row gets the same numbers alone and beside others. */

#include <immintrin.h>

#define MOST_ROWS 256 /* with DEPTH groups, what is rounded of them stays in the second cache */
#define ROOM (GROUP * sizeof(int16_t) + 2 * sizeof(float))
#define FEW 8        /* rows for which the weights are not laid out first */
#define TWO 2        /* of them together */
#define TILE 4       /* rows that share a pass over weights that are */
#define EIGHT 8      /* outputs of a vector */
#define PANEL 16     /* outputs whose weights are laid out together */
#define DEPTH 16     /* groups of them at a time: 16 KiB, so that they stay in the first cache */
#define PAIRS 16     /* in a group */
#define LARGEST 32767
#define LEAST 1e-30f /* smaller activations count as 0 */
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define VNNI _mm256_dpwssd_epi32
#elif defined(__AVXVNNI__)
#define VNNI _mm256_dpwssd_avx_epi32
#endif
#if defined(VNNI) && defined(__AVX512F__) && defined(__AVX512VNNI__)
#define WIDE
#define TILES 2
#endif
#define INLINE static inline __attribute__((always_inline))

/* Activations. numbers: of few rows [rows, groups, 32]; of more [rows / 4, groups, 16, 4, 2], where
   a row past the last one repeats it. scale, sum: [rows, groups] or [rows / 4, groups, 4]; `sum` is
   that of the rounded ones. */
typedef struct {
    int16_t *numbers;
    float *scale, *sum;
} Rounded;

static inline float half(uint16_t h) { return _cvtsh_ss(h); }

/* total + a * b, summed over pairs of neighbours */
INLINE __m256i add_pairs(__m256i total, __m256i a, __m256i b) {
#ifdef VNNI
    return VNNI(total, a, b);
#else
    return _mm256_add_epi32(total, _mm256_madd_epi16(a, b));
#endif
}

INLINE int32_t most(__m256i v) {
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

INLINE int32_t total(__m256i v) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

INLINE __m256i rounded16(const float *x, __m256 factor) {
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
}

/* Round one group to numbers[2]. What is not finite makes its scale so: sizes are compared as bits,
   where NaN and infinity are the largest. */
INLINE void round_group(const float *x, __m256i *numbers, float *scale, float *sum) {
    const __m256i size = _mm256_set1_epi32(0x7fffffff);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i largest = _mm256_setzero_si256();
    for (int part = 0; part < GROUP; part += 8) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *)(x + part));
        largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, size));
    }
    const int32_t bits = most(largest);
    float peak;
    memcpy(&peak, &bits, 4);
    const __m256 factor = _mm256_set1_ps(peak < LEAST ? 0 : LARGEST / peak);
    numbers[0] = rounded16(x, factor);
    numbers[1] = rounded16(x + 16, factor);
    *scale = peak / LARGEST;
    *sum = total(add_pairs(_mm256_madd_epi16(numbers[0], ones), numbers[1], ones)) * *scale;
}

/* Pairs of four rows, v[row][pair] -> out[pair][row]. */
INLINE void interleave(const __m256i *v, __m128i *out) {
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[2]), b = _mm256_unpackhi_epi32(v[0], v[2]);
    const __m256i c = _mm256_unpacklo_epi32(v[4], v[6]), d = _mm256_unpackhi_epi32(v[4], v[6]);
    const __m256i pairs[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                              _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
    for (int i = 0; i < 4; i++) {
        _mm_storeu_si128(out + i, _mm256_castsi256_si128(pairs[i]));
        _mm_storeu_si128(out + i + 4, _mm256_extracti128_si256(pairs[i], 1));
    }
}

/* Round a group of four rows, the first of which starts at x. */
static void round_tile(const float *x, long rows, long groups, long place, const Rounded *to) {
    __m256i numbers[TILE][2];
    for (long m = 0; m < TILE; m++) {
        const float *group = x + (m < rows ? m : rows - 1) * groups * GROUP;
        round_group(group, numbers[m], to->scale + place * TILE + m, to->sum + place * TILE + m);
    }
    __m128i *out = (__m128i *)(to->numbers + place * TILE * GROUP);
    interleave(&numbers[0][0], out);
    interleave(&numbers[0][1], out + PAIRS / 2);
}

/* Of outputs first, first + 1, ...: the i-th, or the last one that there is. */
INLINE long nth(const Weights *w, long first, int i) {
    return first + i < w->outputs ? first + i : w->outputs - 1;
}

/* Numbers 0 to 15 and 16 to 31 of the group at `place`, in 16 bits. */
INLINE void wide(const Weights *w, int bits, long place, __m256i *first, __m256i *second) {
    const __m128i *at = (const __m128i *)(w->numbers + place * (bits == 4 ? 16 : 32));
    if (bits == 4) {
        const __m256i both = _mm256_cvtepu8_epi16(_mm_loadu_si128(at));
        *first = _mm256_and_si256(both, _mm256_set1_epi16(15));
        *second = _mm256_srli_epi16(both, 4);
    } else {
        *first = _mm256_cvtepi8_epi16(_mm_loadu_si128(at));
        *second = _mm256_cvtepi8_epi16(_mm_loadu_si128(at + 1));
    }
}

/* Scales (or least values) of 8 outputs and of 8 groups from g on: out[group] [output]. */
INLINE void eight_scales(const Weights *w, const uint16_t *scale, long output, long g, __m256 *out) {
    const long there = w->groups - g;
    __m128i a[8], b[8];
    for (int i = 0; i < 8; i++) {
        const uint16_t *from = scale + nth(w, output, i) * w->groups + g;
        uint16_t part[8] = {0};
        if (there < 8) memcpy(part, from, 2 * there);
        a[i] = _mm_loadu_si128((const __m128i *)(there < 8 ? part : from));
    }
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm_unpacklo_epi16(a[i], a[i + 4]);
        b[2 * i + 1] = _mm_unpackhi_epi16(a[i], a[i + 4]);
    }
    for (int j = 0; j < 2; j++) {
        a[4 * j] = _mm_unpacklo_epi16(b[j], b[j + 4]);
        a[4 * j + 1] = _mm_unpackhi_epi16(b[j], b[j + 4]);
        a[4 * j + 2] = _mm_unpacklo_epi16(b[j + 2], b[j + 6]);
        a[4 * j + 3] = _mm_unpackhi_epi16(b[j + 2], b[j + 6]);
        for (int k = 0; k < 2; k++) {
            const int pair = 4 * j + k;
            out[4 * j + 2 * k] = _mm256_cvtph_ps(_mm_unpacklo_epi16(a[pair], a[pair + 2]));
            out[4 * j + 2 * k + 1] = _mm256_cvtph_ps(_mm_unpackhi_epi16(a[pair], a[pair + 2]));
        }
    }
}

/* Scales and least values of two headers (`six_bits`): 8 bytes and 8 bytes of each. */
INLINE __m256i two_headers(__m128i first, __m128i second) {
    const __m256i both = _mm256_set_m128i(second, first);
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m256i above = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    const __m256i moved = _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4);
    const __m256i mask = _mm256_set1_epi64x(0x0f0f0f0f3f3f3f3f);
    const __m256i low = _mm256_srlv_epi32(_mm256_shuffle_epi8(both, order), moved);
    const __m256i high = _mm256_srli_epi32(_mm256_shuffle_epi8(both, above), 2);
    return _mm256_or_si256(_mm256_and_si256(low, mask),
                           _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
}

/* The factors of the scales and of the least values of eight headers. */
INLINE void eight_factors(const __m128i *header, __m256 *scale, __m256 *low) {
    const __m128i apart = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m128i four[2];
    for (int i = 0; i < 2; i++) {
        const __m128i a = _mm_unpacklo_epi32(header[4 * i], header[4 * i + 1]);
        const __m128i b = _mm_unpacklo_epi32(header[4 * i + 2], header[4 * i + 3]);
        four[i] = _mm_shuffle_epi8(_mm_unpacklo_epi64(a, b), apart);
    }
    *scale = _mm256_cvtph_ps(_mm_unpacklo_epi64(four[0], four[1]));
    *low = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_cvtph_ps(_mm_unpackhi_epi64(four[0], four[1])));
}

/* out[0], out[1]: the first and the second eight bytes, times the factors. */
INLINE void times(__m128i bytes, __m256 factors, __m256 *out) {
    const __m256i first = _mm256_cvtepu8_epi32(bytes);
    const __m256i second = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
    out[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(first), factors);
    out[1] = _mm256_mul_ps(_mm256_cvtepi32_ps(second), factors);
}

/* Scales and least values of 8 outputs and of the block that begins with group g: [group] [output]. */
INLINE void eight_blocks(const Weights *w, long output, long g, __m256 *scale, __m256 *low) {
    __m128i header[8], a[8], b[8];
    __m256 factors[2];
    for (int i = 0; i < 8; i++) {
        const long block = (nth(w, output, i) * w->groups + g) / BLOCK;
        header[i] = _mm_loadu_si128((const __m128i *)(w->blocks + block * HEADER));
    }
    eight_factors(header, factors, factors + 1);
    for (int i = 0; i < 4; i++) {
        const __m256i both = two_headers(header[i], header[i + 4]);
        a[i] = _mm256_castsi256_si128(both);
        a[i + 4] = _mm256_extracti128_si256(both, 1);
    }
    for (int i = 0; i < 4; i++) { /* outputs i and i + 4 side by side */
        b[i] = _mm_unpacklo_epi8(a[i], a[i + 4]);
        b[i + 4] = _mm_unpackhi_epi8(a[i], a[i + 4]);
    }
    for (int part = 0; part < 2; part++) { /* the scales, then the least values */
        const __m128i *of = b + 4 * part;
        __m256 *out = part ? low : scale;
        const __m128i even[2] = {_mm_unpacklo_epi8(of[0], of[2]), _mm_unpackhi_epi8(of[0], of[2])};
        const __m128i odd[2] = {_mm_unpacklo_epi8(of[1], of[3]), _mm_unpackhi_epi8(of[1], of[3])};
        for (int i = 0; i < 2; i++) {
            times(_mm_unpacklo_epi8(even[i], odd[i]), factors[part], out + 4 * i);
            times(_mm_unpackhi_epi8(even[i], odd[i]), factors[part], out + 4 * i + 2);
        }
    }
}

/* The same, whatever the form of the weights. */
INLINE void eight_ranges(int bits, const Weights *w, long output, long g, __m256 *scale,
                         __m256 *low) {
    if (bits == 4 && w->blocks) {
        eight_blocks(w, output, g, scale, low);
    } else {
        eight_scales(w, w->scale, output, g, scale);
        if (bits == 4) eight_scales(w, w->low, output, g, low);
    }
}

/* The sums of eight vectors. */
INLINE __m256i eight_sums(const __m256i *v) {
    const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    const __m256i low = _mm256_permute2x128_si256(a, b, 0x20);
    return _mm256_add_epi32(low, _mm256_permute2x128_si256(a, b, 0x31));
}

/* y + products of a group, in the one order in which everything is summed. x: scale and sum of its
   activations. */
INLINE __m256 add_group(int bits, __m256 y, __m256i products, __m256 scale, __m256 low,
                        const float *x_scale, const float *x_sum) {
    const __m256 factor = _mm256_mul_ps(scale, _mm256_broadcast_ss(x_scale));
    y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), factor, y);
    if (bits == 4) y = _mm256_fmadd_ps(low, _mm256_broadcast_ss(x_sum), y);
    return y;
}

/* Write eight outputs of a row, or those that there are. */
INLINE void write(const Weights *w, __m256 values, float *y, long row, long output) {
    float *to = y + row * w->outputs + output;
    if (output + EIGHT <= w->outputs) {
        _mm256_storeu_ps(to, values);
    } else {
        float part[EIGHT];
        _mm256_storeu_ps(part, values);
        for (int i = 0; output + i < w->outputs; i++) to[i] = part[i];
    }
}

/* Ask for a part of the eight outputs that come next: memory is the limit for few rows. */
INLINE void fetch_next(int bits, const Weights *w, long output, long g) {
    const long place = output * w->groups + g * EIGHT;
    const char *numbers = (const char *)w->numbers + place * (bits == 4 ? 16 : 32);
    for (int line = 0; line < EIGHT * (bits == 4 ? 16 : 32); line += 64) {
        _mm_prefetch(numbers + line, _MM_HINT_T0);
    }
    if (bits == 4 && w->blocks) {
        if (g % 4 == 0) _mm_prefetch((const char *)w->blocks + place / BLOCK * HEADER, _MM_HINT_T0);
        return;
    }
    if (g % 4 == 0) _mm_prefetch((const char *)(w->scale + place), _MM_HINT_T0);
    if (g % 4 == 0 && bits == 4) _mm_prefetch((const char *)(w->low + place), _MM_HINT_T0);
}

/* Eight outputs of 1 or 2 rows, straight from the weights. */
INLINE void two_rows(int rows, int bits, const Rounded *x, const Weights *w, float *y, long output) {
    __m256 sums[TWO], scale[8], low[8] = {_mm256_setzero_ps()};
    long starts[EIGHT];
    for (int i = 0; i < EIGHT; i++) starts[i] = nth(w, output, i) * w->groups;
    for (int m = 0; m < rows; m++) sums[m] = _mm256_setzero_ps();
    for (long g = 0; g < w->groups; g++) {
        if (g % 8 == 0) {
            eight_ranges(bits, w, output, g, scale, low);
        }
        fetch_next(bits, w, output + EIGHT, g);
        __m256i part[TWO][EIGHT], first, second;
        for (int i = 0; i < EIGHT; i++) {
            wide(w, bits, starts[i] + g, &first, &second);
            for (int m = 0; m < rows; m++) {
                const int16_t *numbers = x->numbers + (m * w->groups + g) * GROUP;
                const __m256i *at = (const __m256i *)numbers;
                part[m][i] = add_pairs(_mm256_madd_epi16(first, _mm256_loadu_si256(at)), second,
                                       _mm256_loadu_si256(at + 1));
            }
        }
        for (int m = 0; m < rows; m++) {
            const long place = m * w->groups + g;
            sums[m] = add_group(bits, sums[m], eight_sums(part[m]), scale[g % 8], low[g % 8],
                                x->scale + place, x->sum + place);
        }
    }
    for (int m = 0; m < rows; m++) write(w, sums[m], y, m, output);
}

/* Eight outputs of up to FEW rows. */
INLINE void few_rows(long rows, int bits, const Rounded *x, const Weights *w, float *y,
                     long output) {
    for (long m = 0; m < rows; m += TWO) {
        const long place = m * w->groups;
        const Rounded part = {x->numbers + place * GROUP, x->scale + place, x->sum + place};
        if (m + 1 < rows) {
            two_rows(TWO, bits, &part, w, y + m * w->outputs, output);
        } else {
            two_rows(1, bits, &part, w, y + m * w->outputs, output);
        }
    }
}

/* Weights of 16 outputs and up to DEPTH groups. numbers: for each pair of numbers of a group, that
   of each output. */
typedef struct __attribute__((aligned(64))) {
    __m256i numbers[DEPTH][PAIRS][2];
    __m256 scale[DEPTH][2], low[DEPTH][2];
} Panel;

/* Pairs of 8 outputs v[output][pair] -> out[pair][output], in steps of 2 vectors. */
INLINE void transpose(const __m256i *v, __m256i *out) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        out[2 * i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        out[2 * (i + 4)] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

INLINE void lay_out(int bits, const Weights *w, long output, long start, int depth, Panel *panel) {
    for (int side = 0; side < 2; side++) {
        const long from = output + EIGHT * side;
        for (int g = 0; g < depth; g++) {
            __m256i first[EIGHT], second[EIGHT];
            for (int i = 0; i < EIGHT; i++) {
                wide(w, bits, nth(w, from, i) * w->groups + start + g, first + i, second + i);
            }
            transpose(first, &panel->numbers[g][0][side]);
            transpose(second, &panel->numbers[g][PAIRS / 2][side]);
        }
        for (int g = 0; g < depth; g += 8) {
            __m256 scale[8], low[8] = {_mm256_setzero_ps()};
            eight_ranges(bits, w, from, start + g, scale, low);
            for (int i = 0; i < 8; i++) panel->scale[g + i][side] = scale[i];
            for (int i = 0; i < 8; i++) panel->low[g + i][side] = low[i];
        }
    }
}

/* Add the products of two numbers of four rows and of 16 outputs: x[row][2], w[side][output][2]. */
#ifdef VNNI
INLINE void add_tile(const int16_t *x, const __m256i *w, __m256i (*part)[2]) {
    for (int m = 0; m < TILE; m++) {
        int32_t both;
        memcpy(&both, x + 2 * m, 4);
        part[m][0] = add_pairs(part[m][0], w[0], _mm256_set1_epi32(both));
        part[m][1] = add_pairs(part[m][1], w[1], _mm256_set1_epi32(both));
    }
}
#else
#define ROW(x, first, second)                                                                 \
    "vpbroadcastd " x "(%[x]), %[both]\n\t"                                                   \
    "vpmaddwd %[both], %[left], %[product]\n\t"                                               \
    "vpmaddwd %[both], %[right], %[both]\n\t"                                                 \
    "vpaddd %[product], %[" first "], %[" first "]\n\t"                                       \
    "vpaddd %[both], %[" second "], %[" second "]\n\t"

/* In assembly, because compilers read ahead and then lack registers for the sums. */
INLINE void add_tile(const int16_t *x, const __m256i *w, __m256i (*part)[2]) {
    __m256i left, right, both, product;
    __asm__ volatile("vmovdqa (%[w]), %[left]\n\t"
                     "vmovdqa 32(%[w]), %[right]\n\t"
                     ROW("0", "a0", "a1") ROW("4", "b0", "b1") ROW("8", "c0", "c1")
                     ROW("12", "d0", "d1")
                     : [a0] "+x"(part[0][0]), [a1] "+x"(part[0][1]), [b0] "+x"(part[1][0]),
                       [b1] "+x"(part[1][1]), [c0] "+x"(part[2][0]), [c1] "+x"(part[2][1]),
                       [d0] "+x"(part[3][0]), [d1] "+x"(part[3][1]), [left] "=&x"(left),
                       [right] "=&x"(right), [both] "=&x"(both), [product] "=&x"(product)
                     : [x] "r"(x), [w] "r"(w)
                     : "memory");
}
#endif

/* Add the products of a panel to the sums [4, 2] of four rows. place: of their first group. */
INLINE void tile(int bits, const Rounded *x, long place, int depth, const Panel *panel,
                 __m256 (*sums)[2]) {
    for (int g = 0; g < depth; g++) {
        __m256i part[TILE][2];
        for (int m = 0; m < TILE; m++) part[m][0] = part[m][1] = _mm256_setzero_si256();
        const int16_t *numbers = x->numbers + (place + g) * TILE * GROUP;
#pragma GCC unroll 4
        for (int pair = 0; pair < PAIRS; pair++) {
            add_tile(numbers + 2 * TILE * pair, panel->numbers[g][pair], part);
        }
        const float *x_scale = x->scale + (place + g) * TILE;
        const float *x_sum = x->sum + (place + g) * TILE;
        for (int m = 0; m < TILE; m++) {
            for (int side = 0; side < 2; side++) {
                sums[m][side] = add_group(bits, sums[m][side], part[m][side], panel->scale[g][side],
                                          panel->low[g][side], x_scale + m, x_sum + m);
            }
        }
    }
}

#ifdef WIDE
/* The same for TILES tiles, with the 16 outputs in one vector: sums [4 * TILES]. */
INLINE void wide_tiles(int bits, const Rounded *x, long place, long groups, int depth,
                       const Panel *panel, __m512 *sums) {
    for (int g = 0; g < depth; g++) {
        __m512i part[TILES * TILE];
        const int16_t *numbers[TILES];
#pragma GCC unroll 8
        for (int t = 0; t < TILES; t++) {
            numbers[t] = x->numbers + (place + t * groups + g) * TILE * GROUP;
        }
#pragma GCC unroll 8
        for (int m = 0; m < TILES * TILE; m++) part[m] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int pair = 0; pair < PAIRS; pair++) {
            const __m512i w = _mm512_load_si512(panel->numbers[g][pair]);
#pragma GCC unroll 8
            for (int m = 0; m < TILES * TILE; m++) {
                int32_t both;
                memcpy(&both, numbers[m / TILE] + 2 * (TILE * pair + m % TILE), 4);
                part[m] = _mm512_dpwssd_epi32(part[m], w, _mm512_set1_epi32(both));
            }
        }
        const __m512 scale = _mm512_load_ps((const float *)panel->scale[g]);
        const __m512 low = _mm512_load_ps((const float *)panel->low[g]);
#pragma GCC unroll 8
        for (int m = 0; m < TILES * TILE; m++) {
            const long at = (place + m / TILE * groups + g) * TILE + m % TILE;
            const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x->scale[at]));
            sums[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[m]), factor, sums[m]);
            if (bits == 4) sums[m] = _mm512_fmadd_ps(low, _mm512_set1_ps(x->sum[at]), sums[m]);
        }
    }
}
#endif

/* 16 outputs of all rows. */
INLINE void many_rows(long rows, int bits, const Rounded *x, const Weights *w, float *y,
                      long output) {
    __m256 sums[MOST_ROWS][2] __attribute__((aligned(64)));
    Panel panel;
    memset(sums, 0, sizeof(sums));
    for (long start = 0; start < w->groups; start += DEPTH) {
        const int depth = w->groups - start < DEPTH ? w->groups - start : DEPTH;
        lay_out(bits, w, output, start, depth, &panel);
        long m = 0;
#ifdef WIDE
        for (; m + (TILES - 1) * TILE < rows; m += TILES * TILE) {
            wide_tiles(bits, x, m / TILE * w->groups + start, w->groups, depth, &panel,
                       (__m512 *)sums[m]);
        }
#endif
        for (; m < rows; m += TILE) {
            tile(bits, x, m / TILE * w->groups + start, depth, &panel, sums + m);
        }
    }
    for (long m = 0; m < rows; m++) {
        write(w, sums[m][0], y, m, output);
        if (output + EIGHT < w->outputs) write(w, sums[m][1], y, m, output + EIGHT);
    }
}

#define EACH(step, work)                                                                      \
    _Pragma("omp parallel for num_threads(threads) schedule(static)")                         \
    for (long n = 0; n < w->outputs; n += step) work

static void round_all(long rows, const float *x, long groups, const Rounded *to, int threads) {
    if (rows <= FEW) {
        for (long place = 0; place < rows * groups; place++) {
            __m256i *at = (__m256i *)(to->numbers + place * GROUP), numbers[2];
            round_group(x + place * GROUP, numbers, to->scale + place, to->sum + place);
            _mm256_storeu_si256(at, numbers[0]);
            _mm256_storeu_si256(at + 1, numbers[1]);
        }
        return;
    }
    _Pragma("omp parallel for num_threads(threads) schedule(static)")
    for (long m = 0; m < rows; m += TILE) {
        for (long g = 0; g < groups; g++) {
            round_tile(x + (m * groups + g) * GROUP, rows - m, groups, m / TILE * groups + g, to);
        }
    }
}

static void multiply(long rows, const float *x, void *room, const Weights *w, float *y,
                     int threads) {
    const long places = (rows + TILE - 1) / TILE * TILE * w->groups;
    Rounded rounded = {room, (float *)((int16_t *)room + places * GROUP), NULL};
    rounded.sum = rounded.scale + places;
    round_all(rows, x, w->groups, &rounded, threads);
    if (rows <= FEW && w->bits == 4) {
        EACH(EIGHT, few_rows(rows, 4, &rounded, w, y, n));
    } else if (rows <= FEW) {
        EACH(EIGHT, few_rows(rows, 8, &rounded, w, y, n));
    } else if (w->bits == 4) {
        EACH(PANEL, many_rows(rows, 4, &rounded, w, y, n));
    } else {
        EACH(PANEL, many_rows(rows, 8, &rounded, w, y, n));
    }
}
