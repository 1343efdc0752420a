/* The products on any processor, by vectors that the compiler makes. All sums are float32. */

#define MOST_ROWS 4
#define ROOM sizeof(float)

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

/* float16 -> float32, finite numbers */
static inline float half(uint16_t h) {
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
    float size;
    memcpy(&size, &bits, 4);
    size *= 0x1p112f;
    return h & 0x8000 ? -size : size;
}

static void range_of(const Weights *w, long place, float *scale, float *low);

/* The numbers of one group as float32. */
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

/* y[m, n] for `rows` rows of x. sums[m, g]: the sum of each group of x, for four bits. */
static inline __attribute__((always_inline)) void output(
    int rows, int bits, const float *x, const float *sums, const Weights *w, float *y, long n) {
    const long bytes = bits == 4 ? GROUP / 2 : GROUP;
    f8 total[MOST_ROWS][2] = {{{0}}};
    float shift[MOST_ROWS] = {0};
    for (long g = 0; g < w->groups; g++) {
        const long place = n * w->groups + g;
        f8 v[4];
        numbers_of(w->numbers + place * bytes, bits, v);
        float factor, least;
        range_of(w, place, &factor, &least);
        for (int m = 0; m < rows; m++) {
            const float *p = x + (m * w->groups + g) * GROUP;
            total[m][0] += (v[0] * load(p) + v[1] * load(p + 8)) * factor;
            total[m][1] += (v[2] * load(p + 16) + v[3] * load(p + 24)) * factor;
            if (bits == 4) shift[m] += least * sums[m * w->groups + g];
        }
    }
    for (int m = 0; m < rows; m++) {
        y[m * w->outputs + n] = sum(total[m][0] + total[m][1]) + shift[m];
    }
}

#define EACH_OUTPUT(count, bits)                                                              \
    _Pragma("omp parallel for num_threads(threads) schedule(static)")                         \
    for (long n = 0; n < w->outputs; n++) output(count, bits, x, sums, w, y, n);              \
    break

#define EACH_COUNT(bits)                                                                      \
    switch (rows) {                                                                           \
    case 1: EACH_OUTPUT(1, bits);                                                             \
    case 2: EACH_OUTPUT(2, bits);                                                             \
    case 3: EACH_OUTPUT(3, bits);                                                             \
    default: EACH_OUTPUT(4, bits);                                                            \
    }

static void multiply(long rows, const float *x, void *room, const Weights *w, float *y,
                     int threads) {
    float *sums = room;
    for (long place = 0; w->bits == 4 && place < rows * w->groups; place++) {
        const float *p = x + place * GROUP;
        sums[place] = sum((load(p) + load(p + 8)) + (load(p + 16) + load(p + 24)));
    }
    if (w->bits == 4) {
        EACH_COUNT(4)
    } else {
        EACH_COUNT(8)
    }
}
