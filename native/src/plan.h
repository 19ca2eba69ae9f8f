/* What both passes of a resize share: which source pixels an output pixel is made of, and how much of each.
 *
 * The numbers are those of Pillow's resize (src/libImaging/Resample.c): weights of 22 bits after the point, int32 sums, and
 * between the passes an image of uint8. A sum of int32 has no order, so whatever order it is computed in gives Pillow's bytes.
 */
#ifndef EXACT_RESIZE_PLAN_H
#define EXACT_RESIZE_PLAN_H

#include <stddef.h>
#include <stdint.h>

#define CHANNELS 3
#define PRECISION_BITS 22
#define ROUNDING (1 << (PRECISION_BITS - 1))
/* An output's weights are filled up to a multiple of this many; those behind the last are 0. */
#define PADDING 16

typedef enum { BOX, BILINEAR, HAMMING, BICUBIC, LANCZOS, FILTERS } filter_kind;

/* The source pixels [first, first + count) that make one output pixel. */
typedef struct {
    int32_t first;
    int32_t count;
} window;

/* One axis. Output pixel i has the weights [i * stride, (i + 1) * stride); stride is a multiple of PADDING. */
typedef struct {
    int32_t outputs;
    int32_t stride;
    window *windows;
    int32_t *weights;
} plan;

/* Plan the outputs [from, from + outputs) of an axis that shrinks or grows from `source` to `target` pixels.
 * All sizes are checked by the caller: 0 < source, target <= 2^20 and from + outputs <= target.
 * 0, or -1 where there is no memory. */
int plan_make(plan *made, filter_kind filter, int32_t source, int32_t target, int32_t from, int32_t outputs);
void plan_free(plan *made);

/* The source pixels that the whole plan reads: [first, end). */
void plan_extent(const plan *of, int32_t *first, int32_t *end);

/* An image uint8 [height, width, 3] whose rows lie `stride` bytes apart. */
typedef struct {
    uint8_t *pixels;
    ptrdiff_t stride;
    int32_t height;
    int32_t width;
} image;

/* How many of its first rows have `bytes` of the image behind them, which may be read. */
static inline int32_t rows_before(image of, ptrdiff_t bytes) {
    int32_t rows = of.height;
    for (ptrdiff_t behind = 0; behind < bytes && rows > 0; behind += of.stride)
        rows--;
    return rows;
}

/* The passes over an image. `horizontal` writes as many rows as the source has, `vertical` as many columns. Each wants a plan whose
 * weights were made ready for it, by `across` and by `down`. -1 where there is no memory. */
typedef struct {
    void (*across)(plan *);
    void (*down)(plan *);
    int (*horizontal)(image source, image target, const plan *);
    void (*vertical)(image source, image target, const plan *);
} passes;

extern const passes portable_passes;
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_AVX2_PASSES 1
#define HAVE_AVX512_PASSES 1
extern const passes avx2_passes, avx512_passes;
void avx2_split(plan *);
void avx2_vertical(image source, image target, const plan *);
#endif

static inline uint8_t clipped(int32_t sum) {
    int32_t value = sum >> PRECISION_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

#endif
