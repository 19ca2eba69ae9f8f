/* exact_resize._kernel: buffers in and out, every size checked before anything is read, and the GIL released meanwhile. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* Of each side; above it the arithmetic of positions would have to be looked at again. */
#define MAX_SIDE (1 << 20)

static const char *const FILTER_NAMES[FILTERS] = {"box", "bilinear", "hamming", "bicubic", "lanczos"};

typedef struct {
    filter_kind filter;
    int32_t height, width; /* of the whole resized image */
    int32_t top, left;     /* of the part that is computed, whose size is the target's */
    int major, minor;      /* of the Pillow whose order of passes is kept */
} job;

#ifdef HAVE_AVX2_PASSES
static int has_avx2(void) { return __builtin_cpu_supports("avx2"); }
#endif
#ifdef HAVE_AVX512_PASSES
static int has_avx512(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}
#endif
static int has_c(void) { return 1; }

/* The quickest first. */
static const struct {
    const char *name;
    int (*here)(void);
    const passes *run;
} INSTRUCTIONS[] = {
#ifdef HAVE_AVX512_PASSES
    {"avx512", has_avx512, &avx512_passes},
#endif
#ifdef HAVE_AVX2_PASSES
    {"avx2", has_avx2, &avx2_passes},
#endif
    {"portable", has_c, &portable_passes},
};
#define KINDS (sizeof INSTRUCTIONS / sizeof *INSTRUCTIONS)

/* The passes of that name, the quickest ones for ""; NULL where this processor has none. */
static const passes *passes_of(const char *name) {
    for (size_t i = 0; i < KINDS; i++)
        if ((!*name || strcmp(name, INSTRUCTIONS[i].name) == 0) && INSTRUCTIONS[i].here())
            return INSTRUCTIONS[i].run;
    return NULL;
}

static void shift(plan *along, int32_t by) {
    for (int32_t i = 0; i < along->outputs; i++)
        along->windows[i].first -= by;
}

static int new_image(image *made, int32_t height, int32_t width) {
    *made = (image){NULL, (ptrdiff_t)width * CHANNELS, height, width};
    made->pixels = malloc((size_t)height * (size_t)made->stride);
    return made->pixels ? 0 : -1;
}

static image part(image of, int32_t top, int32_t left, int32_t height, int32_t width) {
    return (image){of.pixels + top * of.stride + (ptrdiff_t)left * CHANNELS, of.stride, height, width};
}

/* The rows that the vertical plan reads become as wide as the target, then as many as the target has. */
static int horizontal_then_vertical(const passes *run, image source, image target, const plan *across, plan *down) {
    int32_t first, end;
    image between;
    plan_extent(down, &first, &end);
    if (new_image(&between, end - first, target.width))
        return -1;
    const int failed = run->horizontal(part(source, first, 0, end - first, source.width), between, across);
    if (!failed) {
        shift(down, first);
        run->vertical(between, target, down);
    }
    free(between.pixels);
    return failed;
}

/* The columns that the horizontal plan reads become as high as the target, then as many as the target has. */
static int vertical_then_horizontal(const passes *run, image source, image target, plan *across, const plan *down) {
    int32_t first, end;
    image between;
    plan_extent(across, &first, &end);
    if (new_image(&between, target.height, end - first))
        return -1;
    run->vertical(part(source, 0, first, source.height, end - first), between, down);
    shift(across, first);
    const int failed = run->horizontal(between, target, across);
    free(between.pixels);
    return failed;
}

/* Which pass comes first shows, because there is rounding in between. Up to Pillow 12.1 it is always the horizontal one; in 12.2
 * and 12.3 the vertical one where an image is more than 100 times as high as wide and shrinks; since 13 where the height shrinks
 * by more than twice as many pixels as the width. */
static int vertical_first(image source, job wanted) {
    const int64_t rows = (int64_t)source.height - wanted.height, columns = (int64_t)source.width - wanted.width;
    if (wanted.major >= 13)
        return rows > 0 && rows > 2 * columns;
    if (wanted.major == 12 && wanted.minor >= 2)
        return rows > 0 && source.height > (int64_t)source.width * 100;
    return 0;
}

/* A side that keeps its length has no pass, as in Pillow. */
static int resize(const passes *run, image source, image target, job wanted) {
    const int wider = source.width != wanted.width, higher = source.height != wanted.height;
    plan across = {0}, down = {0};
    int failed = 0;
    if (wider)
        failed = plan_make(&across, wanted.filter, source.width, wanted.width, wanted.left, target.width);
    if (higher && !failed)
        failed = plan_make(&down, wanted.filter, source.height, wanted.height, wanted.top, target.height);
    if (!failed) {
        if (wider)
            run->across(&across);
        if (higher)
            run->down(&down);
        if (wider && higher && vertical_first(source, wanted))
            failed = vertical_then_horizontal(run, source, target, &across, &down);
        else if (wider && higher)
            failed = horizontal_then_vertical(run, source, target, &across, &down);
        else if (wider)
            failed = run->horizontal(part(source, wanted.top, 0, target.height, source.width), target, &across);
        else if (higher)
            run->vertical(part(source, 0, wanted.left, source.height, target.width), target, &down);
        else
            for (int32_t y = 0; y < target.height; y++)
                memcpy(
                    target.pixels + y * target.stride,
                    part(source, wanted.top + y, wanted.left, 1, target.width).pixels,
                    (size_t)target.width * CHANNELS);
    }
    plan_free(&across);
    plan_free(&down);
    return failed;
}

/* A buffer as an image; -1 and an exception where it is none. */
static int as_image(const Py_buffer *view, const char *name, image *made) {
    if (view->ndim != 3 || view->itemsize != 1 || (view->format && strcmp(view->format, "B") != 0)) {
        PyErr_Format(PyExc_ValueError, "%s must be uint8 of three dimensions: height, width, 3", name);
        return -1;
    }
    if (view->shape[2] != CHANNELS) {
        PyErr_Format(PyExc_ValueError, "%s has %zd channels and must have 3", name, view->shape[2]);
        return -1;
    }
    for (int side = 0; side < 2; side++)
        if (view->shape[side] < 1 || view->shape[side] > MAX_SIDE) {
            PyErr_Format(PyExc_ValueError, "a side of %s is %zd pixels, not 1 to %d", name, view->shape[side], MAX_SIDE);
            return -1;
        }
    if (view->strides[2] != 1 || view->strides[1] != CHANNELS || view->strides[0] < view->shape[1] * CHANNELS) {
        PyErr_Format(PyExc_ValueError, "the pixels of a row of %s must lie side by side, and its rows in order", name);
        return -1;
    }
    *made = (image){view->buf, view->strides[0], (int32_t)view->shape[0], (int32_t)view->shape[1]};
    return 0;
}

static int check(image source, image target, job wanted) {
    if (wanted.height < 1 || wanted.height > MAX_SIDE || wanted.width < 1 || wanted.width > MAX_SIDE) {
        PyErr_Format(PyExc_ValueError, "the size is %d by %d; a side is 1 to %d", wanted.height, wanted.width, MAX_SIDE);
        return -1;
    }
    if (wanted.top < 0 || wanted.top > wanted.height - target.height || wanted.left < 0 || wanted.left > wanted.width - target.width) {
        PyErr_Format(
            PyExc_ValueError, "a part of %d by %d at %d, %d is not inside %d by %d", target.height, target.width, wanted.top,
            wanted.left, wanted.height, wanted.width);
        return -1;
    }
    const uint8_t *source_end = source.pixels + (source.height - 1) * source.stride + (ptrdiff_t)source.width * CHANNELS;
    const uint8_t *target_end = target.pixels + (target.height - 1) * target.stride + (ptrdiff_t)target.width * CHANNELS;
    if ((uintptr_t)source.pixels < (uintptr_t)target_end && (uintptr_t)target.pixels < (uintptr_t)source_end) {
        PyErr_SetString(PyExc_ValueError, "source and target share memory");
        return -1;
    }
    return 0;
}

static int filter_of(const char *name, filter_kind *filter) {
    for (int each = 0; each < FILTERS; each++)
        if (strcmp(name, FILTER_NAMES[each]) == 0) {
            *filter = (filter_kind)each;
            return 0;
        }
    PyErr_Format(PyExc_ValueError, "there is no filter '%s'; there are box, bilinear, hamming, bicubic and lanczos", name);
    return -1;
}

PyDoc_STRVAR(
    resize_doc,
    "resize(source, target, height, width, filter, top, left, major, minor, instructions)\n--\n\n"
    "Fill target with its part, at top and left, of source resized to height by width.");

static PyObject *resize_function(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer source_view, target_view;
    PyObject *source_object, *target_object;
    const char *filter, *instructions;
    job wanted;
    if (!PyArg_ParseTuple(
            arguments, "OOiisiiiis:resize", &source_object, &target_object, &wanted.height, &wanted.width, &filter, &wanted.top,
            &wanted.left, &wanted.major, &wanted.minor, &instructions))
        return NULL;
    if (filter_of(filter, &wanted.filter))
        return NULL;
    const passes *const run = passes_of(instructions);
    if (!run)
        return PyErr_Format(PyExc_ValueError, "this processor has no '%s'", instructions);
    if (PyObject_GetBuffer(source_object, &source_view, PyBUF_STRIDED_RO | PyBUF_FORMAT))
        return NULL;
    if (PyObject_GetBuffer(target_object, &target_view, PyBUF_STRIDED | PyBUF_FORMAT)) {
        PyBuffer_Release(&source_view);
        return NULL;
    }
    PyObject *result = NULL;
    image source, target;
    if (!as_image(&source_view, "source", &source) && !as_image(&target_view, "target", &target) &&
        !check(source, target, wanted)) {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = resize(run, source, target, wanted);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    PyBuffer_Release(&target_view);
    PyBuffer_Release(&source_view);
    return result;
}

PyDoc_STRVAR(
    instructions_doc,
    "instructions()\n--\n\n"
    "What the passes can be computed with on this processor, the quickest first: a tuple of names.");

static PyObject *instructions_function(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    PyObject *names = PyList_New(0), *result = NULL;
    int failed = !names;
    for (size_t i = 0; i < KINDS && !failed; i++) {
        if (!INSTRUCTIONS[i].here())
            continue;
        PyObject *name = PyUnicode_FromString(INSTRUCTIONS[i].name);
        failed = !name || PyList_Append(names, name);
        Py_XDECREF(name);
    }
    if (!failed)
        result = PyList_AsTuple(names);
    Py_XDECREF(names);
    return result;
}

static PyMethodDef METHODS[] = {
    {"resize", resize_function, METH_VARARGS, resize_doc},
    {"instructions", instructions_function, METH_NOARGS, instructions_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "exact_resize._kernel",
    .m_doc = "Pillow's resize of uint8 RGB images, byte for byte.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&MODULE); }
