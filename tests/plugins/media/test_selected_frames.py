"""Selection of frames by count and by time."""

import io

import pytest
from PIL import Image

from gateway_decoder.choice import Choice
from gateway_decoder.pillow import count_gif_frames
from gateway_plugins.media.animation import read_frames
from gateway_plugins.media.frames import FrameSelection
from tests.animations import animated, gif_of


def chosen(wanted: FrameSelection, times: list[float]) -> list[int]:
    choice = Choice(wanted, len(times))
    return [index for index, seconds in enumerate(times) if choice.takes(index, seconds)]


@pytest.mark.parametrize("total", [1, 2, 7, 100, 999])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 999])
def test_a_count_selects_evenly_spread_frames(total, count):
    wanted = read_frames(str(count), 1_000)
    number = min(count, total)
    assert chosen(wanted, [0.0] * total) == [place * total // number for place in range(number)]
    assert wanted.number_of(total) == number


@pytest.mark.parametrize(
    ("every", "times", "expected"),
    [
        ("every:0.5s", [n / 10 for n in range(20)], [0, 5, 10, 15]),
        ("every:1s", [0, 0.9, 1.3, 1.9, 2.2, 2.9], [0, 2, 4]),  # the first in each second, whenever it comes
        ("every:1s", [0, 5, 10], [0, 1, 2]),
        ("every:0.1s", [0, 0.1, 0.1 + 0.1 + 0.1], [0, 1, 2]),
        ("every:60s", [n / 10 for n in range(20)], [0]),
    ],
)
def test_interval_selects_the_first_frame_of_each_period(every, times, expected):
    assert chosen(read_frames(every, 1_000), list(times)) == expected
    assert read_frames(every, 1_000).number_of(len(times)) is None


@pytest.mark.parametrize("data", [animated("GIF", range(5)), animated("GIF", [3]), gif_of(300), gif_of(1)])
def test_gif_frame_count_equals_that_of_pillow(data):
    assert count_gif_frames(data, 1_000) == getattr(Image.open(io.BytesIO(data)), "n_frames", 1)


def test_frame_count_stops_at_its_limit():
    assert count_gif_frames(gif_of(300), 10) == 11


@pytest.mark.parametrize("length", range(13, 200, 7))
def test_frames_of_a_truncated_gif_are_counted(length):
    assert count_gif_frames(animated("GIF", range(5))[:length] + b";", 100) <= 5
