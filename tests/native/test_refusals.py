"""The kernel refuses invalid arguments before it reads or writes a byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.pictures import noise

exact_resize = pytest.importorskip("exact_resize", reason="the resize kernel is not built: pip install ./native")

import numpy as np  # noqa: E402

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
