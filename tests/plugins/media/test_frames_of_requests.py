"""Frames of a file: each needs a permit like an image, and they end with the request."""

import pytest

from gateway.errors import TooCostly
from gateway_plugins.media.animation import AnimationResult, Frames
from gateway_plugins.media.frames import FrameSelection
from tests.animations import animated
from tests.doubles.scripted import Loop, Scripted

GIF = animated("GIF", range(3))


class Asked(Scripted):
    """A request for frames of one animated file."""

    def __init__(self, timeout_seconds: float = 30.0, **limits: int) -> None:
        super().__init__(Loop(), **limits)
        self.task = self.send(GIF, timeout_seconds=timeout_seconds, expansion=Frames(FrameSelection(10, 3)))

    @property
    def work(self) -> tuple[int, int, int]:
        """Permits, decodes and calls."""
        return self.held, len(self.decoders.pending), len(self.pending)

    @property
    def result(self) -> AnimationResult:
        (result,) = self.results(self.task)
        assert isinstance(result, AnimationResult)
        return result

    @property
    def frames(self) -> list[tuple[int, str | None]]:
        """The number and the error of each frame."""
        return [(frame.index, frame.error and frame.error.code) for frame in self.result.frames]


@pytest.fixture
def asked(monkeypatch):
    # The stand-in opens the file itself.
    monkeypatch.setattr("gateway_plugins.media.animation.animation", lambda decoders, *rest: decoders.animation(*rest))
    made: list[Asked] = []

    def make(**options) -> Asked:
        made.append(Asked(**options))
        return made[-1]

    yield make
    for each in made:
        assert each.task.done()
        assert each.idle
        assert not each.loop.unhandled
        assert all(animation.closed for animation in each.decoders.animations)
        each.loop.close()


def test_next_frame_is_decoded_while_the_last_one_is_inferred(asked):
    request = asked()
    assert request.work == (1, 1, 0)
    request.decode()
    assert request.work == (2, 1, 1)
    request.decode()
    request.decode()
    request.answer_all()
    assert request.frames == [(0, None), (1, None), (2, None)]
    assert [frame.seconds for frame in request.result.frames] == [0.0, 0.1, 0.2]


def test_no_frame_is_decoded_without_a_permit(asked):
    request = asked(max_images=1)
    request.decode()
    assert request.work == (1, 0, 1)
    request.answer()
    assert request.work == (1, 1, 0)
    for _ in range(2):
        request.decode()
        request.answer()
    assert len(request.frames) == 3


def test_frames_answered_before_the_deadline_are_kept(asked):
    request = asked(timeout_seconds=5)
    request.decode()
    request.answer()
    request.pass_time(6)
    assert request.frames == [(0, None), (1, "deadline_exceeded")]
    assert (request.result.error, request.result.frames[1].seconds) == (None, None)


def test_file_without_an_answered_frame_has_the_error(asked):
    request = asked(timeout_seconds=5)
    request.pass_time(6)
    assert (request.result.error.code, request.result.frames) == ("deadline_exceeded", ())


def test_costly_frame_releases_its_permit_and_ends_the_file(asked):
    request = asked()
    request.decode()
    request.decode(TooCostly())
    assert request.held == 1
    request.answer()
    assert request.frames == [(0, None), (1, "too_costly")]


def test_disconnect_during_a_file_releases_everything(asked):
    request = asked()
    request.decode()
    assert request.held == 2
    request.cancel(request.task)
    assert request.task.cancelled()
