#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The kernels, of support 0.5, 1, 1, 2 and 3. They are evaluated in double precision and without fused multiplications
 * (-ffp-contract=off), as in Pillow's wheels: one bit more in a weight could round to another pixel. */

static double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

static double bilinear(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double sinc(double x) {
    if (x == 0.0)
        return 1.0;
    x *= M_PI;
    return sin(x) / x;
}

static double hamming(double x) {
    x = fabs(x);
    if (x == 0.0)
        return 1.0;
    if (x >= 1.0)
        return 0.0;
    x *= M_PI;
    /* The constants are floats there. */
    return sin(x) / x * (0.54f + 0.46f * cos(x));
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0)
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

static double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0; }

static const struct {
    double (*weight)(double);
    double support;
} KERNELS[FILTERS] = {
    [BOX] = {box, 0.5}, [BILINEAR] = {bilinear, 1.0}, [HAMMING] = {hamming, 1.0}, [BICUBIC] = {bicubic, 2.0}, [LANCZOS] = {lanczos, 3.0},
};

static int32_t fixed_point(double weight) {
    double scaled = weight * (1 << PRECISION_BITS);
    return (int32_t)(scaled < 0.0 ? scaled - 0.5 : scaled + 0.5);
}

int plan_make(plan *made, filter_kind filter, int32_t source, int32_t target, int32_t from, int32_t outputs) {
    double (*weight)(double) = KERNELS[filter].weight;
    const double scale = (double)source / target;
    const double stretch = scale < 1.0 ? 1.0 : scale;
    const double support = KERNELS[filter].support * stretch;
    const double inverse = 1.0 / stretch;
    /* No more than the source has, so that a plan's size grows with source + target and not with their product. */
    int32_t most = (int32_t)ceil(support) * 2 + 1;
    if (most > source)
        most = source;
    const int32_t stride = (most + PADDING - 1) / PADDING * PADDING;

    made->outputs = outputs;
    made->stride = stride;
    made->windows = malloc((size_t)outputs * sizeof *made->windows);
    made->weights = calloc((size_t)outputs * (size_t)stride, sizeof *made->weights);
    double *exact = malloc((size_t)stride * sizeof *exact);
    if (!made->windows || !made->weights || !exact) {
        free(exact);
        plan_free(made);
        return -1;
    }
    for (int32_t i = 0; i < outputs; i++) {
        const double centre = (from + i + 0.5) * scale;
        int32_t first = (int32_t)(centre - support + 0.5), end = (int32_t)(centre + support + 0.5);
        if (first < 0)
            first = 0;
        if (end > source)
            end = source;
        int32_t count = end - first;
        /* Neither happens with the sizes that are let in; memory does not hang on that. */
        if (count < 0)
            count = 0;
        if (count > stride)
            count = stride;
        double sum = 0.0;
        for (int32_t k = 0; k < count; k++) {
            exact[k] = weight((k + first - centre + 0.5) * inverse);
            sum += exact[k];
        }
        int32_t *weights = made->weights + (size_t)i * (size_t)stride;
        for (int32_t k = 0; k < count; k++)
            weights[k] = fixed_point(sum != 0.0 ? exact[k] / sum : exact[k]);
        made->windows[i] = (window){first, count};
    }
    free(exact);
    return 0;
}

void plan_free(plan *made) {
    free(made->windows);
    free(made->weights);
    *made = (plan){0};
}

void plan_extent(const plan *of, int32_t *first, int32_t *end) {
    /* Windows move one way. */
    const window last = of->windows[of->outputs - 1];
    *first = of->windows[0].first;
    *end = last.first + last.count;
}
