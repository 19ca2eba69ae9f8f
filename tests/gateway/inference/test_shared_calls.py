"""Calls that images of several requests share."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import metrics
from gateway.errors import (
    DeadlineExceeded,
    ImageCrashedModel,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    UndecodableImage,
)
from gateway.inference.backend import CallLimits, Embeddings
from gateway.inference.request import Image, Observer
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Prediction, Predictions, Result, Row, Selection
from gateway.inference.service import CALL_SECONDS, LIMITS_SECONDS
from gateway.limits.admission import COSTLY_SECONDS
from tests.asking import encode
from tests.doubles.backend import GIF, VECTOR
from tests.doubles.scripted import Loop, Scripted, label_of, query
from tests.processes import wait_for

ONE_CALL = CallLimits(calls=1, images=8)


def image(number: int) -> bytes:
    """An image that no other number has; all have the same size."""
    return encode(np.full((4, 4, 3), number, np.uint8), ".png")


def noise(side: int) -> bytes:
    """A PNG whose bytes and time to decode grow with its side."""
    return encode(np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8), ".png")


def service(loop: Loop, **options: Any) -> Scripted:
    limits = {"max_images": 100, "max_bytes": 10**9, "max_images_waiting": 100, "batch_images": 8, "request_calls": 4}
    return Scripted(loop, **{**limits, **options})


def busy(loop: Loop, **options: Any) -> Scripted:
    """A service with one call in flight, the only one that its Triton needs."""
    on = service(loop, **{"calls": ONE_CALL, **options})
    on.send(image(255))
    return on


def labels(on: Scripted, request: "asyncio.Task[list[Result]]") -> list[str]:
    return [result.predictions[0].label for result in on.results(request)]


def call_seconds() -> float:
    (metric,) = metrics.CALL_SECONDS.collect()
    return next(sample.value for sample in metric.samples if sample.name.endswith("_sum"))


class Watching(Observer):
    """Asks for everything and keeps it."""

    best_classes, keeps_files = 1, True

    def __init__(self) -> None:
        self.seen: dict[str, tuple[Image, Row]] = {}
        self.calls: list[Sequence[tuple[Image, Row]]] = []

    def done(self, image: Image, row: Row) -> None:
        self.seen[image.upload.filename] = image, row

    def call_done(self, spec: RequestSpec, images: Sequence[tuple[Image, Row]]) -> None:
        self.calls.append(images)


def test_single_images_leave_at_once_while_calls_are_free(loop):
    before = call_seconds()
    on = service(loop, calls=CallLimits(calls=3, images=8))
    for number in range(4):
        on.send(image(number))
    assert on.sizes == [1, 1, 1]
    on.answer_all()
    assert on.sizes == [1, 1, 1, 1]
    assert on.idle
    assert 0 < call_seconds() - before < 60


def test_images_of_requests_that_wait_share_the_next_call(loop):
    """Each request has its results, and observers get the images of each request."""
    watching = Watching()
    on = busy(loop, observers=[watching])
    requests = [on.send(image(number)) for number in range(10)]
    assert on.sizes == [1]
    on.answer_all()
    assert on.sizes == [1, 8, 2]
    assert on.calls[1].call.request_id == ",".join("r" * 8)
    assert on.calls[1].call.embeddings is Embeddings.NONE  # no observer keeps them
    assert [labels(on, request) for request in requests] == [[label_of(image(n))] for n in range(10)]
    seen = [[each.payload for each, _ in images] for images in watching.calls]
    assert seen == [[image(255)], *[[image(number)] for number in range(10)]]


def test_limits_are_unknown_before_the_first_call(loop):
    on = service(loop)
    for number in range(3):
        on.send(image(number))
    on.backend.limits = CallLimits(calls=3, images=8)
    for number in range(3, 6):
        on.send(image(number))
    assert on.sizes == [1, 1, 1]
    on.answer_all()
    assert on.sizes == [1, 1, 1, 3]
    assert on.backend.limited == {("m", "", 8)}


def test_image_is_in_the_stage_wait_or_infer(loop):
    on, asked = service(loop, calls=ONE_CALL), query()

    def entered() -> dict[str, int]:
        return {name: stage.inside for name, stage in asked.stats.stages.items() if stage.inside}

    request = on.send(image(1), image(2), asked=asked)
    assert entered() == {"infer": 1, "wait": 1}
    on.answer()
    assert entered() == {"infer": 1}
    on.answer()
    assert entered() == {}
    loop.finish(request)


def test_limits_are_read_again_after_a_while(loop):
    on = busy(loop)
    on.backend.limits = CallLimits(calls=2, images=8)
    for number, sizes in enumerate(([1], [1], [1, 3])):
        on.send(image(number))
        assert on.sizes == sizes
        loop.pass_time(LIMITS_SECONDS / 2)
    on.answer_all()


SIZE = len(image(1))


@pytest.mark.parametrize(
    ("most", "seconds", "options"),
    [
        (2, 0.0, {"calls": CallLimits(calls=1, images=2)}),
        (3, 0.0, {"batch_images": 3}),
        (3, 0.0, {"batch_bytes": 3 * SIZE}),
        (2, 0.0, {"batch_bytes": 3 * SIZE - 1}),
        (1, 0.0, {"batch_bytes": 1}),
        (3, CALL_SECONDS * 0.3, {}),
        (2, CALL_SECONDS / 2, {}),
        (1, CALL_SECONDS * 2, {}),
    ],
)
def test_calls_are_full_at_their_limits(loop, monkeypatch, most, seconds, options):
    """`seconds` is the expected time to decode each image."""
    monkeypatch.setattr("gateway.predict.expected_seconds", lambda *_: seconds)
    on = busy(loop, **options)
    for _ in range(7):
        on.send(image(1))
    on.answer_all()
    assert on.sizes == [1, *[most] * (6 // most), 1]


@pytest.mark.parametrize(
    "asked",
    [
        RequestSpec("m", "2", None, 30, "r"),
        RequestSpec("m", "", Selection(top_k=1), 30, "r"),
        RequestSpec("m", "", None, 30, "r", embeddings=Embeddings.NEEDED),
        RequestSpec("n", "", None, 30, "r"),
    ],
    ids=["version", "selection", "embeddings", "model"],
)
def test_requests_for_different_results_do_not_share_calls(loop, asked):
    on = busy(loop)
    requests = [on.send(image(1)), on.send(image(2), asked=asked), on.send(image(3))]
    on.answer_all()
    assert sorted(on.sizes) == [1, 1, 2]
    sent = {(each.call.model_name, each.call.model_version, each.call.selection) for each in on.calls}
    assert sent == {("m", "", None), (asked.model_name, asked.model_version, asked.selection)}
    for request in requests:
        assert loop.finish(request)[0].error is None


def test_call_has_the_context_of_its_requests(loop):
    """Its logs have the fields of the first one and the identifiers of all."""
    on, fields = busy(loop), []
    on.backend.at_once = lambda _: fields.append(structlog.contextvars.get_contextvars())
    for name in ("a", "b"):
        with structlog.contextvars.bound_contextvars(client=name):
            on.send(image(1), asked=RequestSpec("m", "", None, 30, name))
    on.answer()
    assert {"client": "a", "request_id": "a,b"}.items() <= fields[0].items()
    on.answer_all()


def test_requests_take_turns_in_calls(loop):
    on = busy(loop, batch_images=2)
    for first in (0, 20, 40):
        on.send(*map(image, range(first, first + 3)))
    on.answer_all()
    turns = [
        [number // 20 for number in range(60) for each in call.call.images if each == image(number)]
        for call in on.calls[1:]
    ]
    assert turns == [[0, 1], [0, 2], [1, 2], [0, 1], [2]]


def test_request_has_at_most_max_calls_in_flight(loop):
    on = service(loop, calls=CallLimits(calls=9, images=8), batch_images=2)
    on.send(*map(image, range(12)))
    assert on.sizes == [1] * 4
    on.send(image(100))
    assert on.sizes == [1] * 5
    on.answer_all()
    assert sum(on.sizes) == 13
    assert max(on.sizes) == 2


@pytest.mark.parametrize(("calls", "most"), [(2, 1), (3, 1), (4, 2)])
def test_images_that_take_long_to_decode_leave_calls_for_others(loop, monkeypatch, calls, most):
    """They take at most half of the calls."""
    on, costly = service(loop, calls=CallLimits(calls=calls, images=8)), noise(60)
    expected = {len(costly): COSTLY_SECONDS}
    monkeypatch.setattr("gateway.predict.expected_seconds", lambda _, nbytes: expected.get(nbytes, 0.0))
    requests = [on.send(costly) for _ in range(4)]
    assert on.sizes == [1] * most
    for number in range(3):
        on.send(image(number))
    assert on.sizes == [1] * calls
    on.answer_all()
    assert sum(on.sizes) == 7
    assert all(loop.finish(request)[0].error is None for request in requests)


def test_image_that_may_be_cached_leaves_alone_and_at_once(loop):
    on = busy(loop)
    on.backend.alone.add((image(7), "m", ""))
    on.send(image(1))
    on.send(image(2))
    cached = on.send(image(7))
    assert [each.call.images for each in on.calls] == [[image(255)], [image(7)]]
    on.answer(1)
    assert labels(on, cached) == [label_of(image(7))]
    assert on.sizes == [1, 1]
    on.answer_all()
    assert on.sizes == [1, 1, 2]


def test_late_image_of_a_shared_call_does_not_affect_the_others(loop):
    on = busy(loop)
    hurried = on.send(image(1), timeout_seconds=2)
    patient = on.send(image(2), timeout_seconds=20)
    on.answer()
    assert on.calls[1].call.deadline.at == loop.now + 20
    loop.pass_time(2)
    assert isinstance(loop.finish(hurried)[0].error, DeadlineExceeded)
    assert on.held == 2  # until the call has ended, its images are in Triton
    on.answer()
    assert labels(on, patient) == [label_of(image(2))]
    assert not on.calls[1].cancelled


@pytest.mark.parametrize(("calls", "sent"), [(3, [1]), (1, [])], ids=["idle", "busy"])
def test_image_decoded_at_its_deadline_is_not_sent(loop, calls, sent):
    """The other image of the request is decoded before; it leaves at once, or waits until the deadline."""
    on = busy(loop, calls=CallLimits(calls=calls, images=8))
    request = on.send(GIF, GIF, timeout_seconds=2)
    on.decode()
    on.decoders.finish()
    loop.pass_time(2)
    assert [type(result.error) for result in on.results(request)] == [DeadlineExceeded] * 2
    assert on.sizes == [1, *sent]
    on.answer_all()


@pytest.mark.parametrize("supports_cancellation", [True, False])
def test_call_is_cancelled_once_every_client_has_left(loop, supports_cancellation):
    on = busy(loop, supports_cancellation=supports_cancellation)
    requests = [on.send(image(number)) for number in range(2)]
    on.answer()
    waiting = on.send(image(9))
    for request in requests:
        on.cancel(request)
    assert on.calls[1].cancelled is supports_cancellation
    assert on.calls[1].call.run_to_completion == (not supports_cancellation)
    assert on.sizes == [1, 2, 1]  # no image waits for an abandoned call
    assert on.held == (1 if supports_cancellation else 3)
    on.answer_all()
    assert labels(on, waiting) == [label_of(image(9))]


@pytest.mark.parametrize("sizes", [(1, 1), (2,)], ids=["of two requests", "of one request"])
def test_failure_of_a_shared_call_is_only_that_of_its_cause(loop, sizes):
    """An exception in a model fails the whole call; only sent alone do images show which one is the cause."""
    on = busy(loop)
    numbers = iter(range(2))
    requests = [on.send(*(image(next(numbers)) for _ in range(size))) for size in sizes]
    on.answer()
    on.fail(InferenceFailed())
    assert on.sizes == [1, 2, 1, 1]
    for pending in on.pending:
        if pending.call.images == [image(1)]:
            pending.fail(InferenceFailed())
        else:
            pending.answer()
    errors = [type(result.error) for request in requests for result in loop.finish(request)]
    assert errors == [type(None), InferenceFailed]


def test_request_error_ends_every_request_of_the_call(loop):
    on = busy(loop)
    plain, split = on.send(*map(image, range(20))), on.send(image(30), split=True)
    on.answer()
    on.fail(ModelNotFound())
    assert isinstance(plain.exception(), ModelNotFound)
    assert isinstance(split.exception(), ModelUnavailable)
    assert len(on.calls) == 2


def test_observer_and_request_get_what_they_ask_for(loop):
    watching = Watching()
    on = busy(loop, observers=[watching])
    cat, dog = Prediction("cat", 0, 0.9), Prediction("dog", 1, 0.1)
    request = on.send(*map(image, range(4)), embeddings=Embeddings.NEEDED)
    on.answer()
    assert (on.calls[1].call.embeddings, on.calls[1].call.least_classes) == (Embeddings.NEEDED, 1)
    answered = {"model_version": "7", "multi_label": True, "drift_reference": "r1"}
    rows = [
        Row(predictions=(cat, dog), scores=VECTOR, embedding=VECTOR, **answered),
        Row(best=Predictions.of([dog, cat]), **answered),
        Row(error=UndecodableImage(), **answered),
        Row(error=ImageCrashedModel()),
    ]
    on.pending[0].outcome.set_result(rows)
    results = on.results(request)
    assert [(each.index, each.filename, each.width, each.height) for each in results] == [
        (number, f"{number}", 4, 4) for number in range(4)
    ]
    assert [result.row for result in results] == rows
    seen = [watching.seen[f"{number}"] for number in range(4)]
    first, row = seen[0]
    assert (first.upload.data, first.payload, first.signature, row) == (image(0), image(0), image(0), rows[0])
    assert watching.calls[1] == seen
    assert [row for _, row in seen] == rows


@pytest.mark.parametrize("kept", [b"", GIF], ids=["released", "kept"])
def test_file_of_a_decoded_image_is_kept_only_for_observers_that_need_it(loop, kept):
    watching = Watching()
    watching.keeps_files = bool(kept)
    on = Scripted(loop, observers=[watching])
    request = on.send(GIF)
    on.decode()
    held = on.service.admission.bytes.held
    on.answer()
    ((seen, row),) = watching.seen.values()
    assert (seen.upload.data, row.error, len(on.results(request))) == (kept, None, 1)
    assert held == (len(kept) or len(seen.payload))


@pytest.mark.parametrize("over", [0, 1])
def test_large_image_is_signed_on_a_thread(loop, monkeypatch, over):
    monkeypatch.setattr("gateway.inference.service.SIGNED_INLINE_BYTES", len(image(1)) - over)
    on, threads = service(loop), []
    on.backend.sign = lambda data: threads.append(threading.current_thread()) or b"signature of " + data
    request = on.send(image(1))
    wait_for(lambda: loop.settle() or on.calls)
    assert (threads[0] is not threading.main_thread()) == over
    assert on.calls[0].call.signatures == [b"signature of " + image(1)]
    on.answer()
    assert labels(on, request) == [label_of(image(1))]


@given(
    st.lists(st.lists(st.integers(2, 40), min_size=1, max_size=6), max_size=6),
    st.integers(1, 5),
    st.integers(1, 20_000),
)
@settings(deadline=None, max_examples=30)
def test_every_image_is_sent_once_within_the_bounds(requests: list[list[int]], max_images: int, max_bytes: int):
    loop = Loop()
    on = busy(loop, batch_images=max_images, batch_bytes=max_bytes)
    sent = [[noise(side) for side in sides] for sides in requests]
    tasks = [on.send(*images) for images in sent]
    on.answer_all()
    assert [labels(on, task) for task in tasks] == [list(map(label_of, images)) for images in sent]
    for call in on.calls:
        lengths = list(map(len, call.call.images))
        padded = max(lengths) * len(lengths)
        assert len(lengths) <= max_images
        assert len(lengths) == 1 or padded <= max_bytes
        assert len(lengths) == 1 or padded < 2 * sum(lengths)
    assert sum(on.sizes) == 1 + sum(map(len, sent))
    assert on.idle
    loop.close()
