"""Shadow versions: called on their share, with spare capacity, and without effect on clients."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import structlog

from gateway.errors import ContractBroken, GatewayError, ImageQuarantined, ModelNotFound, TritonUnreachable
from gateway.inference.backend import InferResult, Row
from gateway.inference.observer import CallImage, Observers
from gateway.inference.prediction import Prediction
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.inference.selection import Selection
from gateway_plugins.media.explaining import MaskedCopies
from gateway_plugins.media.masking import Masking, Method
from gateway_plugins.rollouts import metrics
from gateway_plugins.rollouts.shadow import TIMEOUT_SECONDS, Shadows, difference
from gateway_plugins.rollouts.spare_capacity import SpareCapacity
from tests.doubles.backend import MODEL, PNG, StubBackend
from tests.doubles.scripted import (
    Loop,
    PendingCall,
    ScriptedBackend,
    body_of,
    collected,
    idle,
    query,
    service_of,
    start,
)
from tests.services import client_of

ALWAYS = {"m": {"2": 100}}
IMAGES = [CallImage(PNG, b"seal", Result(0, "a.png"), None)]


def answering(pending: PendingCall) -> None:
    """Version 1 answers at once, the test answers for others."""
    if not pending.call.model_version:
        pending.answer()


def backend_of(*, supports_cancellation: bool = True) -> ScriptedBackend:
    backend = ScriptedBackend(supports_cancellation=supports_cancellation)
    backend.at_once = answering
    return backend


def looks(pending: PendingCall, *scores: float) -> None:
    """A shadow's answer for every image of its call."""
    row = Row(decoded=True, scores=np.array(scores, np.float32))
    pending.outcome.set_result(InferResult("m", "2", (row,) * len(pending.call.batch)))


@contextmanager
def counted(model: str = "m", version: str = "2") -> Iterator[dict[str, float]]:
    """Images counted in the block, by outcome."""

    def count() -> dict[str, float]:
        return {
            sample.labels["outcome"]: sample.value
            for family in metrics.SHADOW_IMAGES.collect()
            for sample in family.samples
            if (sample.labels["model"], sample.labels["version"]) == (model, version)
        }

    before, found = count(), {}
    yield found
    after = count()
    found.update({name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)})


def differences() -> tuple[float, float]:
    """How many, and their sum."""
    histogram = metrics.SHADOW_DIFFERENCE.labels("m", "2")
    return sum(bucket.get() for bucket in histogram._buckets), histogram._sum.get()


@pytest.mark.parametrize(("scores", "outcome", "apart"), [((0.8, 0.2), "same", 0.1), ((0.3, 0.7), "different", 0.6)])
def test_answered_images_are_sent_to_the_shadow_and_compared(loop, scores, outcome, apart):
    backend = backend_of()
    service = service_of(backend, shadow=ALWAYS)
    count, total = differences()
    with counted() as found:
        (result,) = loop.finish(start(loop, collected(service, body_of(PNG), query())))
        assert (result.error, result.model_version) == (None, "1")  # and the shadow has not answered yet
        (shadow,) = backend.pending
        assert (shadow.call.model_version, shadow.call.selection, shadow.call.best_effort) == ("2", None, True)
        assert list(shadow.call.batch.images) == list(backend.calls[0].call.batch.images)
        assert idle(service)
        looks(shadow, *scores)
        loop.settle()
    assert found == {outcome: 1}
    after, new_total = differences()
    assert (after - count, new_total - total) == (1, pytest.approx(apart, abs=1e-6))
    assert not service.shadows


def test_shadow_gets_its_share(loop):
    backend = ScriptedBackend()
    throws = [0.0, 0.099, 0.1, 0.5, 0.999]
    shadows, _ = shadows_of(backend, {"m": {"2": 10}}, throws)
    for _ in throws:
        loop.call_soon(shadows.call_done, query(), answered(), IMAGES)
    loop.settle()
    assert len(backend.calls) == 2
    close(loop, shadows)


def test_two_shadows_get_their_own_shares(loop):
    backend = ScriptedBackend()
    shadows, _ = shadows_of(backend, {"m": {"2": 50, "3": 50}}, [0.1, 0.9, 0.2, 0.2], max_images=40)
    for _ in range(2):
        loop.call_soon(shadows.call_done, query(), answered(), IMAGES)
    loop.settle()
    assert [pending.call.model_version for pending in backend.calls] == ["2", "2", "3"]
    close(loop, shadows)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (query(), InferResult("m", "2", (Row(decoded=True, predictions=(Prediction("cat", 0, 0.9),)),))),
        (RequestSpec("other", "", None, 30, "r"), None),
        (RequestSpec("m", "", Selection(labels=("cat",)), 30, "r"), None),
        (RequestSpec("m", "", None, 30, "r", expansion=MaskedCopies(Masking(Method.RISE, 8, 5), 2**20)), None),
        (query(), InferResult("m", "1", (Row(decoded=False),))),
        (query(), InferResult("m", "1", (Row(decoded=True),))),
        (query(), InferResult("m", "1", (Row(decoded=True, error=ImageQuarantined()),))),
    ],
    ids=["the version that answered", "another model", "chosen labels", "explained", "undecoded", "no class", "failed"],
)
def test_incomparable_requests_are_not_sent_to_the_shadow(loop, asked, answer):
    backend = ScriptedBackend()
    shadows, spare = shadows_of(backend)
    loop.call_soon(shadows.call_done, asked, answer or answered(), IMAGES)
    loop.settle()
    assert not backend.calls
    assert spare.images.held == 0


def test_only_answered_images_of_a_batch_are_sent(loop):
    backend = ScriptedBackend()
    shadows, _ = shadows_of(backend)
    rows = (Row(decoded=False), answered().rows[0])
    loop.call_soon(
        shadows.call_done, query(), InferResult("m", "1", rows), [replace(IMAGES[0], payload=b"broken"), *IMAGES]
    )
    loop.settle()
    assert [list(pending.call.batch.images) for pending in backend.calls] == [[PNG]]
    close(loop, shadows)


def test_part_of_a_batch_beyond_spare_capacity_is_sent(loop):
    backend = ScriptedBackend()
    shadows, _ = shadows_of(backend, max_images=8)
    with counted() as found:
        loop.call_soon(shadows.call_done, query(), InferResult("m", "1", answered().rows * 3), IMAGES * 3)
        loop.settle()
    assert [len(pending.call.batch) for pending in backend.calls] == [2]
    assert found == {"skipped": 1}
    close(loop, shadows)


def test_shadow_is_skipped_while_requests_wait(loop):
    backend = ScriptedBackend()
    service = service_of(backend, shadow=ALWAYS, max_images=1)
    requests = [start(loop, collected(service, body_of(PNG), query())) for _ in range(2)]
    loop.settle()
    with counted() as found:
        backend.pending[0].answer()
        loop.settle()
    assert requests[0].done()
    assert found == {"skipped": 1}
    (second,) = backend.pending  # the permit went to who waited
    assert second.call.model_version == ""
    second.answer()
    loop.settle()
    assert [each.call.model_version for each in backend.pending] == ["2"]  # now nobody waits
    loop.finish(start(loop, service.close()))


def test_running_shadow_takes_no_permit(loop):
    backend = backend_of()
    service = service_of(backend, shadow=ALWAYS, max_images=1)
    loop.finish(start(loop, collected(service, body_of(PNG), query())))
    (shadow,) = backend.pending
    with counted() as found:
        for _ in range(3):
            (result,) = loop.finish(start(loop, collected(service, body_of(PNG), query())))
            assert result.error is None
    assert backend.pending == [shadow]
    assert found == {"skipped": 3}  # there is one place, and it is taken
    loop.finish(start(loop, service.close()))


@pytest.mark.parametrize("supports_cancellation", [True, False])
def test_slow_shadow_times_out_and_releases_its_lease(loop, supports_cancellation):
    backend = backend_of(supports_cancellation=supports_cancellation)
    service = service_of(backend, shadow=ALWAYS)
    with counted() as found:
        (result,) = loop.finish(start(loop, collected(service, body_of(PNG), query())))
        loop.pass_time(TIMEOUT_SECONDS)
        loop.settle()
    assert result.error is None
    assert found == {"deadline_exceeded": 1}
    assert backend.calls[1].cancelled is supports_cancellation
    spare = service.shadows.spare
    assert spare.images.held == (0 if supports_cancellation else 1)
    if not supports_cancellation:
        looks(backend.pending[0], 1.0)
        loop.settle()
    assert (spare.images.held, spare.bytes.held, len(service.shadows), len(service.uncancelled)) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TritonUnreachable(), "triton_unreachable"),
        (ModelNotFound(), "model_not_found"),
        (RuntimeError("a bug"), "internal_error"),
    ],
)
def test_failing_shadow_is_counted_and_affects_no_client(loop, error, outcome):
    backend = backend_of()
    service = service_of(backend, shadow=ALWAYS)
    with counted() as found:
        (result,) = loop.finish(start(loop, collected(service, body_of(PNG), query())))
        backend.pending[0].fail(error)
        loop.settle()
    assert result.error is None
    assert found == {outcome: 1}
    assert service.shadows.spare.images.held == 0
    assert idle(service)


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        (Row(decoded=False), "undecodable_image"),
        (Row(decoded=True, error=ImageQuarantined()), "image_quarantined"),
        (Row(decoded=True, scores=np.array([np.nan, 0.1], np.float32)), "inference_failed"),
        (Row(decoded=True, scores=np.zeros(0, np.float32)), "contract_broken"),
    ],
)
def test_image_that_the_shadow_cannot_decode_is_counted(loop, row, outcome):
    backend = backend_of()
    service = service_of(backend, shadow=ALWAYS)
    before = differences()
    with counted() as found:
        loop.finish(start(loop, collected(service, body_of(PNG), query())))
        backend.pending[0].outcome.set_result(InferResult("m", "2", (row,)))
        loop.settle()
    assert found == {outcome: 1}
    assert differences() == before


def test_shadow_outlives_the_request_and_ends_with_the_service(loop):
    backend = backend_of()
    service = service_of(backend, shadow=ALWAYS)
    request = start(loop, collected(service, body_of(PNG), query()))
    loop.finish(request)
    assert len(service.shadows) == 1
    with counted() as found:
        loop.finish(start(loop, service.close()))
    assert backend.calls[1].cancelled
    assert found == {}
    assert (service.shadows.spare.images.held, len(service.shadows)) == (0, 0)


def test_uncancellable_shadow_call_is_left_to_its_owner(loop):
    backend = backend_of(supports_cancellation=False)
    service = service_of(backend, shadow=ALWAYS)
    loop.finish(start(loop, collected(service, body_of(PNG), query())))
    closing = start(loop, service.close())
    loop.settle()
    assert not closing.done()  # as for every such call, a moment is given to it
    assert len(service.shadows) == 0
    looks(backend.pending[0], 1.0)
    loop.finish(closing)
    assert not backend.calls[1].cancelled
    assert service.shadows.spare.images.held == 0


@pytest.mark.parametrize(
    ("answer", "scores", "same", "apart"),
    [
        ({1: 0.7, 0: 0.2}, (0.2, 0.7, 0.1), True, 0.0),
        ({1: 0.7, 0: 0.2}, (0.1, 0.8, 0.1), True, 0.1),
        ({1: 0.7, 0: 0.2}, (0.5, 0.4, 0.1), False, 0.3),
        # Its best class is not told; it had 0.2 at most.
        ({1: 0.7, 0: 0.2}, (0.0, 0.4, 0.6), False, 0.4),
        ({1: 0.4}, (0.0, 0.1, 0.9), False, 0.5),
    ],
)
def test_difference_is_the_largest_among_the_answered_classes(answer, scores, same, apart):
    row = Row(decoded=True, predictions=tuple(Prediction(str(number), number, p) for number, p in answer.items()))
    assert difference(row, np.array(scores, np.float32)) == (same, pytest.approx(apart, abs=1e-6))


def test_all_scores_are_compared():
    row = Row(decoded=True, scores=np.array([0.6, 0.3, 0.1], np.float32))
    assert difference(row, np.array([0.5, 0.3, 0.2], np.float32)) == (True, pytest.approx(0.1, abs=1e-6))


@pytest.mark.parametrize(
    "row",
    [
        Row(decoded=True, scores=np.ones(3, np.float32)),
        Row(decoded=True, predictions=(Prediction("c", 2, 1.0),)),
    ],
)
def test_versions_with_other_classes_cannot_be_compared(row):
    with pytest.raises(ContractBroken):
        difference(row, np.ones(2, np.float32))


def shadows_of(
    backend: ScriptedBackend, shares: Any = ALWAYS, throws: list[float] | None = None, **limits: int
) -> tuple[Shadows, SpareCapacity]:
    """Shadows by themselves; `throws` are what chance comes to."""
    tools = service_of(backend, max_images=limits.pop("max_images", 8)).tools
    left = iter(throws or [])
    chance = (lambda: next(left)) if throws else (lambda: 0.0)
    shadows = Shadows(shares, chance=chance)
    with suppress(StopIteration):  # it waits for nothing
        shadows.start(tools, Observers()).send(None)
    return shadows, shadows.spare


def answered() -> InferResult:
    return InferResult("m", "1", (Row(decoded=True, predictions=(Prediction("cat", 0, 0.9),)),))


def close(loop: Loop, shadows: Shadows) -> None:
    loop.finish(start(loop, shadows.close()))
    assert not shadows


def test_start_and_end_of_a_failure_are_logged_once(loop):
    backend = ScriptedBackend()
    shadows, _ = shadows_of(backend)
    outcomes: list[GatewayError | None] = [ModelNotFound(), ModelNotFound(), None, None]
    with structlog.testing.capture_logs() as captured:
        for outcome in outcomes:
            loop.call_soon(shadows.call_done, query(), answered(), IMAGES)
            loop.settle()
            (pending,) = backend.pending
            if outcome is None:
                looks(pending, 0.9)
            else:
                pending.fail(outcome)
            loop.settle()
    assert [event["event"] for event in captured] == ["shadow_fails", "shadow_answers"]
    assert (captured[0]["model"], captured[0]["version"], captured[0]["code"]) == ("m", "2", "model_not_found")


def test_shadow_setting_reaches_the_service():
    backend = StubBackend()
    with client_of(backend, model_shadow={MODEL.name: {"2": 100}}) as client:
        for _ in range(2):  # while the second is answered, the shadow of the first is asked
            assert client.post("/predict", files={"f": ("a.png", PNG)}).status_code == 200
    assert ("2", True) in [(call.model_version, call.best_effort) for call in backend.calls]
