"""The total cost of a request with many images is bounded."""

import pytest

from gateway.ingest.frames import FrameSelection
from gateway_plugins.media.animation import Frames
from tests.doubles.scripted import Loop, ScriptedBackend, body_of, collected, query, service_of, start
from tests.encoders import png_bomb
from tests.samples import encode, photograph

BLACK = png_bomb(2_000, 2_000)
PHOTO = encode(photograph(), "JPEG")


@pytest.fixture
def loop():
    loop = Loop()
    yield loop
    assert not loop.unhandled
    loop.close()


def answered(loop, *files, **options):
    """The code of each file's error, or "ok"."""
    backend = ScriptedBackend()
    backend.at_once = lambda call: call.answer()
    service = service_of(backend)
    task = start(loop, collected(service, body_of(*files), query(**options)))
    while not task.done():
        loop.settle()
    assert service.admission.images.held == 0
    results = sorted(task.result(), key=lambda result: result.index)
    return [result.error.code if result.error else "ok" for result in results]


def test_black_images_beyond_the_account_are_refused(loop):
    """Each takes 40 ms in the preprocessor, and brings next to nothing; photographs behind them are still answered."""
    codes = answered(loop, *[BLACK] * 300, *[PHOTO] * 20)
    passed = codes[:300].count("ok")
    assert 60 < passed < 150
    assert codes[:60] == ["ok"] * 60
    assert set(codes[:300]) == {"ok", "too_costly"}
    assert codes[300:].count("ok") >= 18


def test_maximum_number_of_photographs_is_answered(loop):
    assert set(answered(loop, *[PHOTO] * 1_000)) == {"ok"}


def test_costly_image_does_not_starve_photographs(loop):
    assert set(answered(loop, BLACK, *[PHOTO] * 100, BLACK)) == {"ok"}


def test_refused_files_are_charged_for_their_inspection(loop, monkeypatch):
    """Each decode takes 0.5 s; a request has 6 s, and more with each file."""
    clock = iter(range(1_000))
    monkeypatch.setattr("gateway.inference.steps.time.thread_time", lambda: next(clock) / 2)
    codes = answered(loop, *[b"\x89PNG\r\n\x1a\n" + bytes(100)] * 10)
    assert codes == ["invalid_image"] * 7 + ["too_costly"] * 3


def test_still_images_are_charged_when_frames_are_requested(loop):
    codes = answered(loop, *[BLACK] * 200, expansion=Frames(FrameSelection(10, 3)))
    assert set(codes) == {"ok", "too_costly"}
