"""Streams through the whole service and a real Triton: overload, crashes and shutdown."""

import asyncio
import itertools
from collections.abc import Iterator

import cv2
import numpy as np
import pytest

from gateway_local.server import EmbeddedTriton
from tests.cameras import PHOTO, cameras, picture
from tests.photos import photo
from tests.processes import Gateway, wait_for
from tests.streaming import ask, opened
from tests.tritons import stub_processes


@pytest.fixture(scope="module")
def service(triton: EmbeddedTriton, start_gateway) -> Iterator[Gateway]:
    with start_gateway(triton_url=triton.url, max_wait_seconds=30) as gateway:
        yield gateway


def drawn(brightness: float) -> bytes:
    """A frame of a drawn video: a cat in light that flickers."""
    pixels = cv2.imdecode(np.frombuffer(photo("cat"), np.uint8), cv2.IMREAD_COLOR)
    return picture(cv2.imencode(".jpg", cv2.convertScaleAbs(pixels, alpha=brightness))[1].tobytes())


def best(answer: dict, *, sequence: bool) -> str:
    told = answer["sequence"] if sequence else answer
    return told["predictions"][0]["label"] if told["predictions"] else ""


def changes(labels: list[str]) -> int:
    return sum(before != after for before, after in itertools.pairwise(labels))


def test_sequence_labels_change_less_often_than_frame_labels(service):
    generator = np.random.default_rng(0)
    light = [1.0 if number % 3 else generator.uniform(0.0, 0.015) for number in range(30)]
    flicker = {}
    for margin in (0.15, 0):
        with opened(service.url, f"?top_k=1&margin={margin}&alpha=0.2") as client:
            answers = [ask(client, drawn(each)) for each in light]
        assert [each["status"] for each in answers] == ["ok"] * 30
        single = changes([best(each, sequence=False) for each in answers])
        flicker[margin] = changes([best(each, sequence=True) for each in answers])
        assert single >= 10
        assert flicker[margin] <= single / 4
    assert flicker[0.15] <= flicker[0]


def test_overloaded_streams_keep_order_report_drops_and_all_progress(service):
    seen = asyncio.run(cameras(service.url, streams=16, fps=30, seconds=4))
    assert [fault for each in seen for fault in each.faults] == []
    answered = [len(each.frames) for each in seen]
    assert sum(each.dropped for each in seen) > 0
    assert not any(each.failed for each in seen)
    assert min(answered) >= max(answered) / 4
    # The images of 16 streams in flight are bounded, so the age of an answer is: 64 frames at a few a second, at worst.
    assert max(second for each in seen for second in each.seconds) < 60


def test_stateful_model_recovers_from_a_crash_and_reports_the_restart(service, triton):
    with opened(service.url) as client:
        assert ask(client, picture(PHOTO.read_bytes()))["sequence"]["frames"] == 1
        for process in stub_processes(triton, "sequence_model"):
            process.kill()
        answers = []

        def restarted() -> bool:
            answers.append(ask(client, picture(PHOTO.read_bytes())))
            return answers[-1]["sequence"]["restarted"]

        wait_for(restarted)
        # The frames' own answers continued all the time: only the sequence was interrupted.
        assert {each["status"] for each in answers} == {"ok"}
        assert {each["sequence"]["error"]["code"] for each in answers[:-1]} <= {"model_unavailable"}
        assert answers[-1]["sequence"]["frames"] == 1
        assert ask(client, picture(PHOTO.read_bytes()))["sequence"]["frames"] == 2
