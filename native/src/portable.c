/* The passes in plain C, for processors without AVX2. */

#include "plan.h"

static void prepare(plan *made) { (void)made; }

static int horizontal(image source, image target, const plan *along) {
    for (int32_t y = 0; y < source.height; y++) {
        const uint8_t *row = source.pixels + y * source.stride;
        uint8_t *out = target.pixels + y * target.stride;
        for (int32_t x = 0; x < along->outputs; x++) {
            const window at = along->windows[x];
            const int32_t *weights = along->weights + (size_t)x * (size_t)along->stride;
            const uint8_t *from = row + (ptrdiff_t)at.first * CHANNELS;
            int32_t red = ROUNDING, green = ROUNDING, blue = ROUNDING;
            for (int32_t k = 0; k < at.count; k++, from += CHANNELS) {
                red += from[0] * weights[k];
                green += from[1] * weights[k];
                blue += from[2] * weights[k];
            }
            *out++ = clipped(red);
            *out++ = clipped(green);
            *out++ = clipped(blue);
        }
    }
    return 0;
}

static void vertical(image source, image target, const plan *along) {
    const int32_t bytes = target.width * CHANNELS;
    for (int32_t y = 0; y < along->outputs; y++) {
        const window at = along->windows[y];
        const int32_t *weights = along->weights + (size_t)y * (size_t)along->stride;
        const uint8_t *rows = source.pixels + at.first * source.stride;
        uint8_t *out = target.pixels + y * target.stride;
        for (int32_t i = 0; i < bytes; i++) {
            int32_t sum = ROUNDING;
            for (int32_t k = 0; k < at.count; k++)
                sum += rows[k * source.stride + i] * weights[k];
            out[i] = clipped(sum);
        }
    }
}

const passes portable_passes = {prepare, prepare, horizontal, vertical};
