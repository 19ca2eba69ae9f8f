"""The kernel's bytes are Pillow's: every filter, any size, any part, either order of passes, by all instructions.

At the end, what it refuses before it reads or writes a byte.
"""

import threading
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.native.pictures import INSTALLED, by_pillow, noise, pass_by_pass, with_gap

exact_resize = pytest.importorskip("exact_resize", reason="the resize kernel is not built: pip install ./native")

import numpy as np  # noqa: E402

FILTERS = st.sampled_from(exact_resize.FILTERS)
SIDES = st.one_of(st.integers(1, 9), st.integers(1, 260))
SIZES = st.tuples(SIDES, SIDES)
GAPS = st.sampled_from([0, 1, 2, 9])
EVERY = pytest.mark.parametrize("by", exact_resize.INSTRUCTIONS)


def resized(pixels, size, **options):
    target = np.full((*size, 3), 77, np.uint8)
    exact_resize.resize(pixels, target, size, **options)
    return target


@EVERY
@given(shape=SIZES, size=SIZES, kernel=FILTERS, seed=st.integers(0, 99))
@example(shape=(1, 1), size=(260, 260), kernel="lanczos", seed=0)
@example(shape=(260, 260), size=(1, 1), kernel="lanczos", seed=0)
@example(shape=(600, 2), size=(20, 8), kernel="bicubic", seed=0)
def test_whole_image_equals_the_installed_pillows(by, shape, size, kernel, seed):
    pixels = noise(*shape, seed)
    mine = resized(pixels, size, filter=kernel, pillow=INSTALLED, by=by)
    assert np.array_equal(mine, by_pillow(pixels, size, kernel))


@EVERY
@given(data=st.data(), shape=SIZES, size=SIZES, kernel=FILTERS, gaps=st.tuples(GAPS, GAPS))
def test_part_equals_a_crop_of_the_whole(by, data, shape, size, kernel, gaps):
    """Also between buffers with gaps between their rows, which the sanitizers check to the byte."""
    top, left = (data.draw(st.integers(0, side - 1)) for side in size)
    part = data.draw(st.integers(1, size[0] - top)), data.draw(st.integers(1, size[1] - left))
    pixels, target = noise(*shape), with_gap(np.full((*part, 3), 77, np.uint8), gaps[1])
    options = {"corner": (top, left), "filter": kernel, "pillow": INSTALLED, "by": by}
    exact_resize.resize(with_gap(pixels, gaps[0]), target, size, **options)
    assert np.array_equal(target, by_pillow(pixels, size, kernel)[top : top + part[0], left : left + part[1]])


ORDERS = {
    "up to 12.1 never": ((12, 1), (300, 90), (30, 60), False),
    "up to 12.1 in no strip": ((12, 1), (909, 9), (50, 5), False),
    "12.2 in strips": ((12, 2), (909, 9), (50, 5), True),
    "12.3 in nothing that is less of a strip": ((12, 3), (900, 9), (50, 5), False),
    "12.3 in no strip that grows": ((12, 3), (909, 9), (910, 5), False),
    "13 where rows shrink by more than twice as much": ((13, 0), (300, 90), (30, 60), True),
    "13 not where they shrink by twice as much": ((13, 0), (100, 90), (40, 60), False),
    "13 where the width grows": ((13, 0), (100, 50), (99, 80), True),
    "13 not where both grow": ((13, 0), (100, 50), (120, 80), False),
    "14 as 13": ((14, 1), (300, 90), (30, 60), True),
}


@EVERY
@pytest.mark.parametrize("name", ORDERS)
def test_first_pass_is_that_of_the_given_pillow_release(by, name):
    pillow, shape, size, vertical_first = ORDERS[name]
    pixels = noise(*shape)
    wanted = pass_by_pass(pixels, size, "bicubic", vertical_first=vertical_first)
    other = pass_by_pass(pixels, size, "bicubic", vertical_first=not vertical_first)
    assert not np.array_equal(wanted, other)
    assert np.array_equal(resized(pixels, size, filter="bicubic", pillow=pillow, by=by), wanted)


@EVERY
@pytest.mark.parametrize("width", range(1, 14))
@pytest.mark.parametrize("height", [1, 2, 3, 4, 5, 9])
def test_narrow_rows_are_not_read_past_their_end(by, height, width):
    # Between bytes that would show, whichever pass read them or wrote over them.
    around = np.full((height + 2, width + 2, 3), 255, np.uint8)
    around[1:-1, 1:-1] = pixels = noise(height, width) // 2
    target = np.full((9, 9, 3), 77, np.uint8)
    exact_resize.resize(around[1:-1, 1:-1], target[1:-1, 1:-1], (7, 7), filter="bicubic", pillow=INSTALLED, by=by)
    assert np.array_equal(target[1:-1, 1:-1], by_pillow(pixels, (7, 7), "bicubic"))
    target[1:-1, 1:-1] = 77
    assert (target == 77).all()


@EVERY
@pytest.mark.parametrize("kernel", exact_resize.FILTERS)
@pytest.mark.parametrize(("shape", "size"), [((700, 1100), (256, 402)), ((1500, 400), (224, 224))])
def test_large_image_equals_pillows(by, shape, size, kernel):
    pixels = noise(*shape)
    mine = resized(pixels, size, filter=kernel, pillow=INSTALLED, by=by)
    assert np.array_equal(mine, by_pillow(pixels, size, kernel))


def test_bytes_work_without_numpy():
    pixels = noise(20, 30)
    target = bytearray(8 * 9 * 3)
    exact_resize.resize(
        memoryview(pixels.tobytes()).cast("B", (20, 30, 3)),
        memoryview(target).cast("B", (8, 9, 3)),
        (8, 9),
        filter="bilinear",
        pillow=INSTALLED,
    )
    assert bytes(target) == by_pillow(pixels, (8, 9), "bilinear").tobytes()


def test_memory_grows_with_the_sides_and_not_with_the_area():
    longest = 2**20
    pixels, target = np.full((2, longest, 3), 200, np.uint8), np.zeros((1, 1, 3), np.uint8)
    exact_resize.resize(pixels, target, (1, 1), filter="lanczos", pillow=INSTALLED)
    assert np.array_equal(target, by_pillow(pixels, (1, 1), "lanczos"))
    exact_resize.resize(pixels[:, :1], target, (longest, longest), corner=(longest - 1, 0), filter="lanczos")
    assert (target == 200).all()


def test_other_threads_run_during_a_resize():
    pixels = np.full((1000, 1000, 3), 255, np.uint8)
    deadline = time.monotonic() + 60
    seen = False
    # Rows are written one by one: a thread that sees the first without the last runs concurrently with the kernel.
    while not seen and time.monotonic() < deadline:
        target = np.zeros((500, 1000, 3), np.uint8)
        options = {"filter": "lanczos", "by": "portable"}
        worker = threading.Thread(target=exact_resize.resize, args=(pixels, target, (500, 1000)), kwargs=options)
        worker.start()
        while worker.is_alive():
            seen = seen or bool(target[0, 0, 0] and not target[-1, -1, 0])
        worker.join()
    assert seen


PIXELS, TARGET = noise(20, 30), np.zeros((8, 9, 3), np.uint8)
STRIP = np.zeros((1, 2**20 + 1, 3), np.uint8)
READ_ONLY = np.zeros((8, 9, 3), np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("source", "target", "size", "corner", "words"),
    [
        (PIXELS[..., 0], TARGET, (8, 9), (0, 0), "source must be uint8 of three dimensions"),
        (PIXELS.astype(np.int8), TARGET, (8, 9), (0, 0), "source must be uint8 of three dimensions"),
        (PIXELS.astype(np.uint16), TARGET, (8, 9), (0, 0), "source must be uint8 of three dimensions"),
        (PIXELS.tobytes(), TARGET, (8, 9), (0, 0), "source must be uint8 of three dimensions"),
        (PIXELS, np.zeros((8, 9, 4), np.uint8), (8, 9), (0, 0), "target has 4 channels"),
        (PIXELS, TARGET[:0], (8, 9), (0, 0), "a side of target is 0 pixels"),
        (STRIP, TARGET, (8, 9), (0, 0), "a side of source is 1048577 pixels"),
        (PIXELS[:, ::2], TARGET, (8, 9), (0, 0), "must lie side by side"),
        (PIXELS[::-1], TARGET, (8, 9), (0, 0), "its rows in order"),
        (PIXELS[..., ::-1], TARGET, (8, 9), (0, 0), "must lie side by side"),
        (np.broadcast_to(PIXELS[:1], PIXELS.shape), TARGET, (8, 9), (0, 0), "its rows in order"),
        (PIXELS.transpose(1, 0, 2), TARGET, (8, 9), (0, 0), "must lie side by side"),
        (PIXELS, TARGET, (0, 9), (0, 0), "the size is 0 by 9"),
        (PIXELS, TARGET, (2**20 + 1, 9), (0, 0), "the size is 1048577 by 9"),
        (PIXELS, TARGET, (8, 8), (0, 0), "a part of 8 by 9 at 0, 0 is not inside 8 by 8"),
        (PIXELS, TARGET, (8, 9), (1, 0), "a part of 8 by 9 at 1, 0 is not inside 8 by 9"),
        (PIXELS, TARGET, (8, 9), (0, -1), "is not inside"),
        (PIXELS, TARGET, (8, 9), (2**31 - 1, 0), "is not inside"),
        (PIXELS, PIXELS[5:10], (8, 30), (0, 0), "share memory"),
    ],
)
def test_invalid_buffers_and_parts_are_refused(source, target, size, corner, words):
    with pytest.raises(ValueError, match=words):
        exact_resize.resize(source, target, size, filter="bilinear", corner=corner)
    assert not TARGET.any()


NONSENSE = st.sampled_from([-(2**31), -1, 0, 2**20 + 1, 2**31 - 1])


@given(size=st.tuples(NONSENSE, NONSENSE), corner=st.tuples(NONSENSE, NONSENSE))
def test_nonsensical_sizes_and_corners_are_refused(size, corner):
    with pytest.raises(ValueError, match=r"size|inside"):
        exact_resize.resize(PIXELS, TARGET.copy(), size, corner=corner, filter="bilinear")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"filter": "nearest"}, "no filter 'nearest'"), ({"filter": "bilinear", "by": "mmx"}, "has no 'mmx'")],
)
def test_unknown_filter_and_instructions_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        exact_resize.resize(PIXELS, TARGET, (8, 9), **options)


def test_overflowing_numbers_and_read_only_targets_are_refused():
    with pytest.raises(OverflowError):
        exact_resize.resize(PIXELS, TARGET, (8, 2**40), filter="bilinear")
    with pytest.raises((BufferError, ValueError)):
        exact_resize.resize(PIXELS, READ_ONLY, (8, 9), filter="bilinear")
    with pytest.raises(TypeError):
        exact_resize.resize(None, TARGET, (8, 9), filter="bilinear")
