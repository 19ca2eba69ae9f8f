/* The passes with AVX2.
 *
 * Its widest product of pixels and weights is pmaddwd, int16 by int16, two products added into an int32. A weight of 23 bits is
 * cut in two for it: weight = low + (high << 15), 0 <= low < 2^15. Both sums are taken modulo 2^32; the whole sum fits in an
 * int32, so it comes out right though the sum of the lows may have wrapped.
 */

#include "plan.h"

#ifdef HAVE_AVX2_PASSES
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))
#define GROUP 4  /* weights that are loaded at once */
#define SLACK 32 /* bytes that a load may read behind a row's end, and a store write */
#define ROWS 4   /* horizontal: rows that share the loads of weights */
#define BLOCK 32 /* vertical: bytes of a row in one go */

_Static_assert(PADDING % GROUP == 0, "an output's weights must come in whole groups");

/* Each group of four int32 weights becomes four int16 lows and four int16 highs, in its place. */
void avx2_split(plan *made) {
    const size_t count = (size_t)made->outputs * (size_t)made->stride;
    for (size_t at = 0; at < count; at += GROUP) {
        int16_t halves[2 * GROUP];
        for (int k = 0; k < GROUP; k++) {
            const int32_t weight = made->weights[at + (size_t)k];
            halves[k] = (int16_t)(weight & 0x7fff);
            halves[GROUP + k] = (int16_t)(weight >> 15);
        }
        memcpy(made->weights + at, halves, sizeof halves);
    }
}

AVX2 static inline __m256i join(__m256i low, __m256i high) { return _mm256_add_epi32(low, _mm256_slli_epi32(high, 15)); }

/* Red, green and blue of two pixels in each half: r0 r1 g0 g1 b0 b1 0 0, and so of the two behind. */
AVX2 static inline __m256i four_pixels(const uint8_t *at) {
    const __m256i order = _mm256_setr_epi8(
        0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
        6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)at)), order);
}

AVX2 static inline __m128i one_pixel(__m256i low, __m256i high) {
    const __m256i sums = join(low, high);
    const __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(ROUNDING)), PRECISION_BITS);
}

AVX2 static void horizontal_rows(const uint8_t *const rows[ROWS], uint8_t *const outs[ROWS], const plan *along) {
    const __m256i lows = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), highs = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
    for (int32_t x = 0; x < along->outputs; x++) {
        const window at = along->windows[x];
        const ptrdiff_t start = (ptrdiff_t)at.first * CHANNELS;
        const int32_t *weights = along->weights + (size_t)x * (size_t)along->stride;
        const uint8_t *row0 = rows[0] + start, *row1 = rows[1] + start, *row2 = rows[2] + start, *row3 = rows[3] + start;
        __m256i low0 = _mm256_setzero_si256(), low1 = low0, low2 = low0, low3 = low0;
        __m256i high0 = low0, high1 = low0, high2 = low0, high3 = low0;
        for (int32_t k = 0; k < at.count; k += GROUP) {
            const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(weights + k)));
            const __m256i low = _mm256_permutevar8x32_epi32(both, lows), high = _mm256_permutevar8x32_epi32(both, highs);
            const ptrdiff_t offset = (ptrdiff_t)k * CHANNELS;
            __m256i pixels = four_pixels(row0 + offset);
            low0 = _mm256_add_epi32(low0, _mm256_madd_epi16(pixels, low));
            high0 = _mm256_add_epi32(high0, _mm256_madd_epi16(pixels, high));
            pixels = four_pixels(row1 + offset);
            low1 = _mm256_add_epi32(low1, _mm256_madd_epi16(pixels, low));
            high1 = _mm256_add_epi32(high1, _mm256_madd_epi16(pixels, high));
            pixels = four_pixels(row2 + offset);
            low2 = _mm256_add_epi32(low2, _mm256_madd_epi16(pixels, low));
            high2 = _mm256_add_epi32(high2, _mm256_madd_epi16(pixels, high));
            pixels = four_pixels(row3 + offset);
            low3 = _mm256_add_epi32(low3, _mm256_madd_epi16(pixels, low));
            high3 = _mm256_add_epi32(high3, _mm256_madd_epi16(pixels, high));
        }
        const __m128i words01 = _mm_packs_epi32(one_pixel(low0, high0), one_pixel(low1, high1));
        const __m128i words23 = _mm_packs_epi32(one_pixel(low2, high2), one_pixel(low3, high3));
        int32_t pixels[ROWS];
        _mm_storeu_si128((__m128i *)pixels, _mm_packus_epi16(words01, words23));
        /* A byte more than a pixel has; the next pixel writes over it, and behind the last one there is SLACK. */
        for (int row = 0; row < ROWS; row++)
            memcpy(outs[row] + (ptrdiff_t)x * CHANNELS, &pixels[row], sizeof pixels[row]);
    }
}

static int horizontal(image source, image target, const plan *along) {
    /* A row of ours for each of the four, where reading or writing behind the end would touch what is not ours. */
    const size_t in_bytes = (size_t)source.width * CHANNELS, out_bytes = (size_t)along->outputs * CHANNELS;
    uint8_t *const space = calloc(ROWS, in_bytes + out_bytes + 2 * SLACK);
    if (!space)
        return -1;
    const int32_t followed = rows_before(source, SLACK);
    for (int32_t y = 0; y < source.height; y += ROWS) {
        const uint8_t *rows[ROWS];
        uint8_t *outs[ROWS];
        for (int32_t row = 0; row < ROWS; row++) {
            /* Where fewer than four are left, the last one once more. */
            const int32_t from = y + row < source.height ? y + row : source.height - 1;
            uint8_t *const copy = space + (size_t)row * (in_bytes + SLACK);
            rows[row] = source.pixels + from * source.stride;
            if (from >= followed)
                rows[row] = memcpy(copy, rows[row], in_bytes);
            outs[row] = space + ROWS * (in_bytes + SLACK) + (size_t)row * (out_bytes + SLACK);
        }
        horizontal_rows(rows, outs, along);
        for (int32_t row = 0; row < ROWS && y + row < source.height; row++)
            memcpy(target.pixels + (y + row) * target.stride, outs[row], out_bytes);
    }
    free(space);
    return 0;
}

/* BLOCK bytes of one output row. */
AVX2 static inline void vertical_block(const uint8_t *from, ptrdiff_t stride, int32_t count, const int32_t *weights, uint8_t *out) {
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(ROUNDING);
    __m256i low[4] = {zero, zero, zero, zero}, high[4] = {zero, zero, zero, zero};
    for (int32_t k = 0; k < count; k += 2) {
        /* Lows and highs of a group stand in int32s 0, 1 and 2, 3, two rows' weights in each. */
        const int32_t *pair = weights + (k & ~(GROUP - 1)) + (k & 2) / 2;
        const __m256i lows = _mm256_set1_epi32(pair[0]), highs = _mm256_set1_epi32(pair[2]);
        const __m256i upper = _mm256_loadu_si256((const __m256i *)(from + k * stride));
        /* The weight of a row behind the last is 0. */
        const __m256i lower = _mm256_loadu_si256((const __m256i *)(from + (k + 1 < count ? k + 1 : k) * stride));
        const __m256i ends = _mm256_unpacklo_epi8(upper, lower), begins = _mm256_unpackhi_epi8(upper, lower);
        const __m256i words[4] = {
            _mm256_unpacklo_epi8(ends, zero), _mm256_unpackhi_epi8(ends, zero),
            _mm256_unpacklo_epi8(begins, zero), _mm256_unpackhi_epi8(begins, zero)};
        for (int i = 0; i < 4; i++) {
            low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(words[i], lows));
            high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(words[i], highs));
        }
    }
    for (int i = 0; i < 4; i++)
        low[i] = _mm256_srai_epi32(_mm256_add_epi32(join(low[i], high[i]), half), PRECISION_BITS);
    const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
    _mm256_storeu_si256((__m256i *)out, bytes);
}

static int32_t weight_at(const int32_t *weights, int32_t k) {
    int16_t halves[2 * GROUP];
    memcpy(halves, weights + (k & ~(GROUP - 1)), sizeof halves);
    return halves[k & (GROUP - 1)] + halves[GROUP + (k & (GROUP - 1))] * (1 << 15);
}

AVX2 void avx2_vertical(image source, image target, const plan *along) {
    const int32_t bytes = target.width * CHANNELS;
    for (int32_t y = 0; y < along->outputs; y++) {
        const window at = along->windows[y];
        const int32_t *weights = along->weights + (size_t)y * (size_t)along->stride;
        const uint8_t *rows = source.pixels + at.first * source.stride;
        uint8_t *out = target.pixels + y * target.stride;
        if (bytes < BLOCK) {
            for (int32_t i = 0; i < bytes; i++) {
                int32_t sum = ROUNDING;
                for (int32_t k = 0; k < at.count; k++)
                    sum += rows[k * source.stride + i] * weight_at(weights, k);
                out[i] = clipped(sum);
            }
            continue;
        }
        for (int32_t i = 0; i + BLOCK <= bytes; i += BLOCK)
            vertical_block(rows + i, source.stride, at.count, weights, out + i);
        /* The rest, together with bytes that are written a second time and alike. */
        vertical_block(rows + bytes - BLOCK, source.stride, at.count, weights, out + bytes - BLOCK);
    }
}

const passes avx2_passes = {avx2_split, avx2_split, horizontal, avx2_vertical};
#endif
