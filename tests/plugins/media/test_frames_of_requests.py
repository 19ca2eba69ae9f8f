"""Frames of a file: each needs a permit like an image, and they end with the request."""

import asyncio

import pytest

from gateway.errors import TooCostly
from gateway_plugins.media.animation import Frames
from gateway_plugins.media.frames import FrameSelection
from tests.animations import animated
from tests.doubles.scripted import (
    Body,
    Loop,
    ScriptedBackend,
    ScriptedDecoders,
    collected,
    query,
    service_of,
    start,
)

GIF = animated("GIF", range(3))


class Asked:
    """A request for frames of one animated file."""

    def __init__(self, count: int = 3, timeout_seconds: float = 30.0, **limits: int) -> None:
        self.loop, self.backend, self.decoders = Loop(), ScriptedBackend(), ScriptedDecoders()
        self.service = service_of(self.backend, decoders=self.decoders, **limits)
        body = Body()
        body.send(GIF)
        body.end()
        asked = query(timeout_seconds, expansion=Frames(FrameSelection(10, count)))
        self.task = start(self.loop, collected(self.service, body, asked, None))
        self.loop.settle()

    @property
    def in_flight(self) -> int:
        return self.service.admission.images.held

    def decode(self, error: Exception | None = None) -> None:
        self.decoders.finish(0, error)
        self.loop.settle()

    def answer(self) -> None:
        self.backend.pending[0].answer()
        self.loop.settle()


@pytest.fixture
def asked(monkeypatch):
    # The stand-in opens the file itself.
    monkeypatch.setattr("gateway_plugins.media.animation.animation", lambda decoders, *rest: decoders.animation(*rest))
    made: list[Asked] = []

    def make(*arguments, **options) -> Asked:
        made.append(Asked(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        assert each.task.done()
        assert each.in_flight == each.service.admission.bytes.held == 0
        assert not each.loop.unhandled
        assert all(animation.closed for animation in each.decoders.animations)
        each.loop.close()


def test_next_frame_is_decoded_while_the_last_one_is_inferred(asked):
    request = asked()
    assert (request.in_flight, len(request.decoders.pending), len(request.backend.pending)) == (1, 1, 0)
    request.decode()
    assert (request.in_flight, len(request.decoders.pending), len(request.backend.pending)) == (2, 1, 1)
    request.decode()
    request.decode()
    while request.backend.pending:
        request.answer()
    (result,) = request.loop.finish(request.task)
    assert [(frame.index, frame.seconds, frame.error) for frame in result.frames] == [
        (0, 0.0, None),
        (1, 0.1, None),
        (2, 0.2, None),
    ]


def test_no_frame_is_decoded_without_a_permit(asked):
    request = asked(max_images=1)
    request.decode()
    assert (request.in_flight, len(request.decoders.pending), len(request.backend.pending)) == (1, 0, 1)
    request.answer()
    assert (request.in_flight, len(request.decoders.pending)) == (1, 1)
    for _ in range(2):
        request.decode()
        request.answer()
    assert len(request.loop.finish(request.task)[0].frames) == 3


def test_frames_answered_before_the_deadline_are_kept(asked):
    request = asked(timeout_seconds=5)
    request.decode()
    request.answer()
    request.loop.pass_time(6)
    (result,) = request.loop.finish(request.task)
    assert [(frame.index, frame.error and frame.error.code) for frame in result.frames] == [
        (0, None),
        (1, "deadline_exceeded"),
    ]
    assert (result.error, result.frames[1].seconds) == (None, None)


def test_file_without_an_answered_frame_has_the_error(asked):
    request = asked(timeout_seconds=5)
    request.loop.pass_time(6)
    (result,) = request.loop.finish(request.task)
    assert (result.error.code, result.frames) == ("deadline_exceeded", ())


def test_costly_frame_releases_its_permit_and_ends_the_file(asked):
    request = asked()
    request.decode()
    request.decode(TooCostly())
    assert request.in_flight == 1
    request.answer()
    (result,) = request.loop.finish(request.task)
    assert [frame.error and frame.error.code for frame in result.frames] == [None, "too_costly"]


def test_disconnect_during_a_file_releases_everything(asked):
    request = asked()
    request.decode()
    assert request.in_flight == 2
    request.task.cancel()
    request.loop.settle()
    with pytest.raises(asyncio.CancelledError):
        request.loop.finish(request.task)
