/* The horizontal pass with AVX-512, for processors whose products of bytes (VNNI) and shuffles of bytes (VBMI) are 512 bits wide.
 *
 * vpdpbusd multiplies uint8 by int8 and adds four products to an int32, without saturation. A weight of 23 bits is cut in three for
 * it: weight = low + (middle << 8) + (high << 16), each of them an int8. The sums are taken modulo 2^32, as in avx2.c.
 */

#include "plan.h"

#ifdef HAVE_AVX512_PASSES
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))
#define ROWS 4    /* rows that share the loads of weights */
#define TAPS 16   /* source pixels in one go */
#define SPARE 1   /* bytes behind a row of the target that a pixel's store may touch */
#define LOAD 64   /* bytes of a row that are loaded for them, those behind the last tap included */
#define ALL ((__mmask64)-1)

_Static_assert(PADDING % TAPS == 0, "an output's weights must come in whole groups");

/* Each group of sixteen int32 weights becomes sixteen lows, middles and highs of int8, in its place. None is too large for that:
 * the largest is lanczos's beside an edge, 1.4 times 2^22, and three signed bytes hold 1.98 times. */
static void split(plan *made) {
    const size_t count = (size_t)made->outputs * (size_t)made->stride;
    for (size_t at = 0; at < count; at += TAPS) {
        int8_t parts[4 * TAPS] = {0};
        for (int k = 0; k < TAPS; k++) {
            int32_t rest = made->weights[at + (size_t)k];
            for (int part = 0; part < 3; part++) {
                parts[part * TAPS + k] = (int8_t)(rest & 0xff);
                rest = (rest - parts[part * TAPS + k]) >> 8;
            }
        }
        memcpy(made->weights + at, parts, sizeof parts);
    }
}

typedef struct {
    __m512i low, middle, high;
} sums;

/* Sixteen pixels, four in each quarter: r0 r1 r2 r3 g0 g1 g2 g3 b0 b1 b2 b3 0 0 0 0. `which` are the bytes that may be read, all 64
 * of them for ALL: a load that leaves some out waits for longer. */
AVX512 static inline __m512i sixteen_pixels(const uint8_t *at, __mmask64 which, __m512i order) {
    const __m512i bytes = which == ALL ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi8(which, at);
    return _mm512_maskz_permutexvar_epi8(0x0fff0fff0fff0fff, order, bytes);
}

AVX512 static inline sums add(sums to, __m512i pixels, sums weights) {
    return (sums){
        _mm512_dpbusd_epi32(to.low, pixels, weights.low), _mm512_dpbusd_epi32(to.middle, pixels, weights.middle),
        _mm512_dpbusd_epi32(to.high, pixels, weights.high)};
}

AVX512 static inline __m512i joined(sums of) {
    return _mm512_add_epi32(of.low, _mm512_add_epi32(_mm512_slli_epi32(of.middle, 8), _mm512_slli_epi32(of.high, 16)));
}

/* The halves of both added up: a's in the lower half, b's in the upper. */
AVX512 static inline __m512i halved(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
}

/* One pixel of each row, four bytes apart. */
AVX512 static inline __m128i four_rows(const sums rows[ROWS]) {
    const __m512i first = halved(joined(rows[0]), joined(rows[1])), second = halved(joined(rows[2]), joined(rows[3]));
    const __m512i even = _mm512_shuffle_i64x2(first, second, 0x88), odd = _mm512_shuffle_i64x2(first, second, 0xdd);
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(even, odd), _mm512_set1_epi32(ROUNDING));
    const __m512i values = _mm512_srai_epi32(sum, PRECISION_BITS);
    return _mm512_cvtusepi32_epi8(_mm512_max_epi32(values, _mm512_setzero_si512()));
}

/* Where `apart`, nothing behind the end of a row is read. */
AVX512 static inline void horizontal_rows(
    const uint8_t *const rows[ROWS], uint8_t *const outs[ROWS], const plan *along, const int apart) {
    const __m512i lows = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i middles = _mm512_add_epi32(lows, _mm512_set1_epi32(4)), highs = _mm512_add_epi32(lows, _mm512_set1_epi32(8));
    const __m512i quarter = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, 0, 0, 0, 0));
    const __m512i order = _mm512_add_epi8(quarter, _mm512_mullo_epi32(lows, _mm512_set1_epi32(0x0c0c0c0c)));
    const __m512i zero = _mm512_setzero_si512();
    for (int32_t x = 0; x < along->outputs; x++) {
        const window at = along->windows[x];
        const int32_t *weights = along->weights + (size_t)x * (size_t)along->stride;
        sums sum[ROWS] = {{zero, zero, zero}, {zero, zero, zero}, {zero, zero, zero}, {zero, zero, zero}};
        for (int32_t k = 0; k < at.count; k += TAPS) {
            const int32_t left = at.count - k;
            const __mmask64 which = apart ? ((__mmask64)1 << (left < TAPS ? left : TAPS) * CHANNELS) - 1 : ALL;
            const __m512i parts = _mm512_loadu_si512(weights + k);
            const sums by = {
                _mm512_permutexvar_epi32(lows, parts), _mm512_permutexvar_epi32(middles, parts), _mm512_permutexvar_epi32(highs, parts)};
            const ptrdiff_t offset = (ptrdiff_t)(at.first + k) * CHANNELS;
            for (int row = 0; row < ROWS; row++)
                sum[row] = add(sum[row], sixteen_pixels(rows[row] + offset, which, order), by);
        }
        uint8_t pixels[ROWS][4];
        _mm_storeu_si128((__m128i *)pixels, four_rows(sum));
        /* A byte more than a pixel has, over which the next pixel writes. */
        for (int row = 0; row < ROWS; row++)
            memcpy(outs[row] + (ptrdiff_t)x * CHANNELS, pixels[row], sizeof pixels[row]);
    }
}

static int horizontal(image source, image target, const plan *along) {
    const size_t bytes = (size_t)along->outputs * CHANNELS;
    uint8_t *const space = malloc(ROWS * (bytes + SPARE));
    if (!space)
        return -1;
    const int32_t followed = rows_before(source, LOAD);
    for (int32_t y = 0; y < source.height; y += ROWS) {
        const uint8_t *rows[ROWS];
        uint8_t *outs[ROWS];
        for (int32_t row = 0; row < ROWS; row++) {
            /* Where fewer than four are left, the last one once more. */
            const int32_t from = y + row < source.height ? y + row : source.height - 1;
            rows[row] = source.pixels + from * source.stride;
            outs[row] = space + (size_t)row * (bytes + SPARE);
        }
        if (y + ROWS <= followed)
            horizontal_rows(rows, outs, along, 0);
        else
            horizontal_rows(rows, outs, along, 1);
        for (int32_t row = 0; row < ROWS && y + row < source.height; row++)
            memcpy(target.pixels + (y + row) * target.stride, outs[row], bytes);
    }
    free(space);
    return 0;
}

const passes avx512_passes = {split, avx2_split, horizontal, avx2_vertical};
#endif
