"""Calls that images of several requests share."""

import asyncio
from collections.abc import Sequence

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import DeadlineExceeded, InferenceFailed, ModelNotFound, ModelUnavailable, TritonUnreachable
from gateway.inference.backend import CallLimits, Embeddings
from gateway.inference.batching import CALL_SECONDS
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.inference.selection import Selection
from gateway.inference.service import InferenceService
from gateway.ingest.decode_budget import expected_seconds
from gateway.ingest.inspection import inspect
from gateway.ingest.upload import Limits
from tests.asking import encode
from tests.doubles.scripted import (
    Loop,
    ScriptedBackend,
    body_of,
    collected,
    idle,
    label_of,
    query,
    service_of,
    start,
)
from tests.settings import Settings

ONE_CALL = CallLimits(calls=1, images=8)


def image(number: int) -> bytes:
    """An image that no other number has; all have the same size."""
    return encode(np.full((4, 4, 3), number, np.uint8), ".png")


def noise(side: int) -> bytes:
    """A PNG whose bytes and time to decode grow with its side."""
    return encode(np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8), ".png")


def service(backend: ScriptedBackend, **limits: int) -> InferenceService:
    options = {"max_images": 100, "max_bytes": 10**9, "max_images_waiting": 100, "batch_images": 8, "request_calls": 4}
    return service_of(backend, **{**options, **limits})


def send(
    loop: Loop, on: InferenceService, *images: bytes, asked: RequestSpec | None = None
) -> "asyncio.Task[list[Result]]":
    request = start(loop, collected(on, body_of(*images), asked or query()))
    loop.settle()
    return request


def busy(loop: Loop, backend: ScriptedBackend, **limits: int) -> InferenceService:
    """A service with one call in flight, the only one that its Triton needs."""
    backend.limits = backend.limits or ONE_CALL
    on = service(backend, **limits)
    send(loop, on, image(255))
    return on


def sizes(backend: ScriptedBackend) -> list[int]:
    return [len(each.call.batch) for each in backend.calls]


def labels(results: Sequence[Result]) -> list[str]:
    return [result.predictions[0].label for result in sorted(results, key=lambda result: result.index)]


def answer_all(loop: Loop, backend: ScriptedBackend) -> None:
    while backend.pending:
        backend.pending[0].answer()
        loop.settle()


def test_single_images_leave_at_once_while_calls_are_free(loop):
    backend = ScriptedBackend()
    backend.limits = CallLimits(calls=3, images=8)
    on = service(backend)
    for number in range(4):
        send(loop, on, image(number))
    assert sizes(backend) == [1, 1, 1]
    answer_all(loop, backend)
    assert sizes(backend) == [1, 1, 1, 1]
    assert idle(on)


def test_images_of_requests_that_wait_share_the_next_call(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend)
    requests = [send(loop, on, image(number)) for number in range(10)]
    assert sizes(backend) == [1]
    answer_all(loop, backend)
    assert sizes(backend) == [1, 8, 2]
    assert backend.calls[1].call.request_id == ",".join("r" * 8)
    assert [labels(loop.finish(request)) for request in requests] == [[label_of(image(n))] for n in range(10)]
    assert idle(on)


def test_limits_are_unknown_before_the_first_call(loop):
    backend = ScriptedBackend()
    on = service(backend)
    for number in range(3):
        send(loop, on, image(number))
    backend.limits = CallLimits(calls=3, images=8)
    for number in range(3, 6):
        send(loop, on, image(number))
    assert sizes(backend) == [1, 1, 1]
    answer_all(loop, backend)
    assert sizes(backend) == [1, 1, 1, 3]


def test_model_without_padding_gets_images_of_one_length_in_a_call(loop):
    backend = ScriptedBackend()
    backend.limits = CallLimits(calls=1, images=8, mixed_lengths=False)
    on = busy(loop, backend)
    images = [image(number) + bytes(number % 2) for number in range(8)]
    for each in images:
        send(loop, on, each)
    answer_all(loop, backend)
    lengths = [set(map(len, call.call.batch.images)) for call in backend.calls[1:]]
    assert sorted(map(list, lengths)) == [[length] for length in sorted(set(map(len, images)))]
    assert sum(sizes(backend)) == 1 + len(images)


def test_call_has_no_more_images_than_the_model_takes(loop):
    backend = ScriptedBackend()
    backend.limits = CallLimits(calls=1, images=2)
    on = busy(loop, backend)
    for number in range(5):
        send(loop, on, image(number))
    answer_all(loop, backend)
    assert sizes(backend) == [1, 2, 2, 1]


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
    backend = ScriptedBackend()
    on = busy(loop, backend)
    requests = [send(loop, on, image(1)), send(loop, on, image(2), asked=asked), send(loop, on, image(3))]
    answer_all(loop, backend)
    assert sorted(sizes(backend)) == [1, 1, 2]
    for request in requests:
        assert loop.finish(request)[0].error is None


def test_equal_selections_of_different_requests_share_a_call(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend)
    for number in range(2):
        send(loop, on, image(number), asked=RequestSpec("m", "", Selection(top_k=3, labels=("a",)), 30, "r"))
    answer_all(loop, backend)
    assert sizes(backend) == [1, 2]


def test_large_and_small_images_are_not_batched_together(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend)
    for data in (image(1), noise(60), image(2), noise(61)):
        send(loop, on, data)
    answer_all(loop, backend)
    assert [set(each.call.batch.images) for each in backend.calls[1:]] == [
        {image(1), image(2)},
        {noise(60), noise(61)},
    ]


def test_single_image_waits_for_one_call_of_a_large_request(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend)
    bulk = send(loop, on, *map(image, range(30)))
    single = send(loop, on, image(200))
    backend.pending[0].answer()
    loop.settle()
    assert single.done() is False
    assert image(200) in backend.calls[1].call.batch.images
    backend.pending[0].answer()
    assert labels(loop.finish(single)) == [label_of(image(200))]
    answer_all(loop, backend)
    assert labels(loop.finish(bulk)) == [label_of(image(number)) for number in range(30)]


def test_requests_take_turns_in_calls(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend, batch_images=2)
    for first in (0, 20, 40):
        send(loop, on, *map(image, range(first, first + 3)))
    answer_all(loop, backend)
    turns = [
        [number // 20 for number in range(60) for each in call.call.batch.images if each == image(number)]
        for call in backend.calls[1:]
    ]
    assert turns == [[0, 1], [0, 2], [1, 2], [0, 1], [2]]


def test_request_has_at_most_max_calls_in_flight(loop):
    backend = ScriptedBackend()
    backend.limits = CallLimits(calls=9, images=8)
    on = service(backend, batch_images=2)
    send(loop, on, *map(image, range(12)))
    assert sizes(backend) == [1] * 4
    send(loop, on, image(100))
    assert sizes(backend) == [1] * 5
    answer_all(loop, backend)
    assert sum(sizes(backend)) == 13
    assert max(sizes(backend)) == 2


def test_images_that_take_long_to_decode_leave_calls_for_others(loop):
    backend = ScriptedBackend()
    backend.limits = CallLimits(calls=4, images=8)
    on = service(backend)
    pixels = np.random.default_rng(1).integers(0, 256, (730, 730, 3), np.uint8)
    costly = cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, 100])[1].tobytes()
    info = inspect(costly, Limits.from_settings(Settings(_env_file=None)))
    assert CALL_SECONDS / 2 < expected_seconds(info, len(costly)) < CALL_SECONDS
    requests = [send(loop, on, costly) for _ in range(4)]
    assert sizes(backend) == [1, 1]  # half of the calls
    for number in range(3):
        send(loop, on, image(number))
    assert sizes(backend) == [1] * 4
    answer_all(loop, backend)
    assert sizes(backend) == [1, 1, 1, 1, 1, 1, 1]
    assert all(loop.finish(request)[0].error is None for request in requests)


def test_image_that_may_be_cached_leaves_alone_and_at_once(loop):
    backend = ScriptedBackend()
    backend.alone.add(image(7))
    on = busy(loop, backend)
    send(loop, on, image(1))
    send(loop, on, image(2))
    cached = send(loop, on, image(7))
    assert [each.call.batch.images for each in backend.calls] == [[image(255)], [image(7)]]
    backend.pending[1].answer()
    assert labels(loop.finish(cached)) == [label_of(image(7))]
    assert sizes(backend) == [1, 1]
    answer_all(loop, backend)
    assert sizes(backend) == [1, 1, 2]


def test_images_that_travel_alone_count_as_calls_of_their_request(loop):
    backend = ScriptedBackend()
    backend.alone.update(map(image, range(10)))
    on = busy(loop, backend)
    request = send(loop, on, *map(image, range(10)))
    assert sizes(backend) == [1] * 5
    answer_all(loop, backend)
    assert sizes(backend) == [1] * 11
    assert labels(loop.finish(request)) == [label_of(image(number)) for number in range(10)]


def test_late_image_of_a_shared_call_does_not_affect_the_others(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend)
    hurried = send(loop, on, image(1), asked=query(2))
    patient = send(loop, on, image(2), asked=query(20))
    backend.pending[0].answer()
    loop.settle()
    assert backend.calls[1].call.deadline.at == loop.now + 20
    loop.pass_time(2)
    assert isinstance(loop.finish(hurried)[0].error, DeadlineExceeded)
    assert on.admission.images.held == 2  # until the call has ended, its images are in Triton
    backend.pending[0].answer()
    assert labels(loop.finish(patient)) == [label_of(image(2))]
    assert not backend.calls[1].cancelled
    assert idle(on)


def test_image_whose_deadline_passes_while_it_waits_is_not_sent(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend)
    late = send(loop, on, image(1), asked=query(2))
    loop.pass_time(2)
    assert isinstance(loop.finish(late)[0].error, DeadlineExceeded)
    answer_all(loop, backend)
    assert sizes(backend) == [1]
    assert idle(on)


@pytest.mark.parametrize("supports_cancellation", [True, False])
def test_disconnect_from_a_shared_call_does_not_affect_others(loop, supports_cancellation):
    backend = ScriptedBackend(supports_cancellation=supports_cancellation)
    on = busy(loop, backend)
    requests = [send(loop, on, image(number)) for number in range(3)]
    requests[0].cancel()  # while it waits
    loop.settle()
    backend.pending[0].answer()
    loop.settle()
    assert backend.calls[1].call.batch.images == [image(1), image(2)]
    requests[1].cancel()
    loop.settle()
    assert not backend.calls[1].cancelled
    backend.pending[0].answer()
    assert labels(loop.finish(requests[2])) == [label_of(image(2))]
    assert idle(on)


@pytest.mark.parametrize("supports_cancellation", [True, False])
def test_call_is_cancelled_once_every_client_has_left(loop, supports_cancellation):
    backend = ScriptedBackend(supports_cancellation=supports_cancellation)
    on = busy(loop, backend)
    requests = [send(loop, on, image(number)) for number in range(2)]
    backend.pending[0].answer()
    loop.settle()
    waiting = send(loop, on, image(9))
    for request in requests:
        request.cancel()
    loop.settle()
    assert backend.calls[1].cancelled is supports_cancellation
    assert sizes(backend) == [1, 2, 1]  # no image waits for an abandoned call
    assert on.admission.images.held == (1 if supports_cancellation else 3)
    answer_all(loop, backend)
    assert labels(loop.finish(waiting)) == [label_of(image(9))]
    assert idle(on)


def test_failure_of_a_shared_call_is_only_that_of_its_cause(loop):
    """An exception in a model fails the whole call; only sent alone do images show which one is the cause."""
    backend = ScriptedBackend()
    on = busy(loop, backend)
    requests = [send(loop, on, image(number)) for number in range(3)]
    backend.pending[0].answer()
    loop.settle()
    backend.pending[0].fail(InferenceFailed())
    loop.settle()
    assert sizes(backend) == [1, 3, 1, 1, 1]
    for pending in backend.pending:
        if pending.call.batch.images == [image(1)]:
            pending.fail(InferenceFailed())
        else:
            pending.answer()
    errors = [type(loop.finish(request)[0].error) for request in requests]
    assert errors == [type(None), InferenceFailed, type(None)]
    assert idle(on)


def test_failure_of_one_requests_call_is_that_of_its_images(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend)
    request = send(loop, on, *map(image, range(3)))
    backend.pending[0].answer()
    loop.settle()
    backend.pending[0].fail(InferenceFailed())
    assert [type(result.error) for result in loop.finish(request)] == [InferenceFailed] * 3
    assert sizes(backend) == [1, 3]


def test_unreachable_triton_is_an_error_of_every_image(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend)
    requests = [send(loop, on, image(number)) for number in range(3)]
    backend.pending[0].answer()
    loop.settle()
    backend.pending[0].fail(TritonUnreachable())
    assert [type(loop.finish(request)[0].error) for request in requests] == [TritonUnreachable] * 3
    assert idle(on)


def test_request_error_ends_every_request_of_the_call(loop):
    backend = ScriptedBackend()
    on = busy(loop, backend)
    plain, split = send(loop, on, *map(image, range(20))), send(loop, on, image(30), asked=query(split=True))
    backend.pending[0].answer()
    loop.settle()
    backend.pending[0].fail(ModelNotFound())
    loop.settle()
    assert isinstance(plain.exception(), ModelNotFound)
    assert isinstance(split.exception(), ModelUnavailable)
    assert len(backend.calls) == 2
    assert idle(on)


def test_shadow_gets_the_rows_of_each_request(loop):
    backend = ScriptedBackend()
    backend.limits = ONE_CALL
    on = service_of(backend, shadow={"m": {"2": 100}}, max_images=100, batch_images=8)
    for number in range(3):
        send(loop, on, image(number))
    backend.calls[0].answer()
    loop.settle()
    joined = next(each for each in backend.pending if not each.call.best_effort)
    joined.answer()
    loop.settle()
    shadowed = [each.call.batch.images for each in backend.calls if each.call.best_effort]
    assert shadowed == [[image(number)] for number in range(3)]
    for pending in backend.pending:
        pending.answer()
    loop.finish(start(loop, on.close()))


@given(
    st.lists(st.lists(st.integers(2, 40), min_size=1, max_size=6), max_size=6),
    st.integers(1, 5),
    st.integers(1, 20_000),
)
@settings(deadline=None, max_examples=30)
def test_every_image_is_sent_once_within_the_bounds(requests: list[list[int]], max_images: int, max_bytes: int):
    loop, backend = Loop(), ScriptedBackend()
    on = busy(loop, backend, batch_images=max_images, batch_bytes=max_bytes)
    sent = [[noise(side) for side in sides] for sides in requests]
    tasks = [send(loop, on, *images) for images in sent]
    answer_all(loop, backend)
    assert [labels(loop.finish(task)) for task in tasks] == [list(map(label_of, images)) for images in sent]
    for call in backend.calls:
        lengths = list(map(len, call.call.batch.images))
        padded = max(lengths) * len(lengths)
        assert len(lengths) <= max_images
        assert len(lengths) == 1 or padded <= max_bytes
        assert len(lengths) == 1 or padded < 2 * sum(lengths)
    assert sum(sizes(backend)) == 1 + sum(map(len, sent))
    assert idle(on)
    loop.close()
