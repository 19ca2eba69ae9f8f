"""Shadow versions: called on their share, with spare capacity, and without effect on clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog

from gateway.errors import (
    ContractBroken,
    GatewayError,
    ImageCrashedModel,
    ModelNotFound,
    TritonUnreachable,
    UndecodableImage,
)
from gateway.inference.request import Observers
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Prediction, Row, Selection
from gateway.inference.tasks import CLOSING_SECONDS
from gateway.ingest.upload import Upload
from gateway.limits.admission import Admission
from gateway.plugins.rollouts import metrics
from gateway.plugins.rollouts.shadow import TIMEOUT_SECONDS, Shadows, SpareCapacity, difference
from tests.doubles.backend import CAT, PNG, scored
from tests.doubles.scripted import Loop, PendingCall, Scripted, ScriptedBackend, query, service_of, start

ALWAYS = {"m": {"2": 100}}
ANSWERED = replace(CAT, model_version="1")


def images_of(*rows: Row, payload: bytes = PNG) -> Any:
    """Images of a call, with their rows."""
    request = SimpleNamespace(service=SimpleNamespace(observers=Observers()))
    image = SimpleNamespace(
        request=request, payload=payload, signature=b"signature", upload=Upload(0, "a.png", payload)
    )
    return [(image, row) for row in rows]


def shadowed(loop: Loop, **options: Any) -> Scripted:
    """A service with a shadow of each request, whose first version answers at once; the test answers for others."""

    def at_once(pending: PendingCall) -> None:
        if not pending.call.model_version:
            pending.answer()

    return Scripted(loop, at_once=at_once, shadow=ALWAYS, **options)


def classes(scores: dict[int, float]) -> Row:
    """A row with some classes."""
    return Row(predictions=tuple(Prediction(str(number), number, p) for number, p in scores.items()))


def looks(pending: PendingCall, *scores: float) -> None:
    """A shadow's answer for every image of its call."""
    pending.answer(row=scored(*scores))


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
    on = shadowed(loop)
    count, total = differences()
    with counted() as found:
        (result,) = on.classify(PNG)
        assert (result.error, result.row.model_version) == (None, "1")  # and the shadow has not answered yet
        (shadow,) = on.pending
        assert (shadow.call.model_version, shadow.call.selection, shadow.call.best_effort) == ("2", None, True)
        assert list(shadow.call.images) == list(on.calls[0].call.images)
        assert on.idle
        looks(shadow, *scores)
        loop.settle()
    assert found == {outcome: 1}
    after, new_total = differences()
    assert (after - count, new_total - total) == (1, pytest.approx(apart, abs=1e-6))
    assert not on.service.uncancelled


@pytest.mark.parametrize(
    ("shares", "throws", "versions"),
    [
        ({"2": 10}, [0.0, 0.099, 0.1, 0.5, 0.999], ["2", "2"]),
        ({"2": 50, "3": 50}, [0.1, 0.9, 0.2, 0.2], ["2", "2", "3"]),
    ],
    ids=["one", "two"],
)
def test_shadows_get_their_shares(loop, shares, throws, versions):
    backend = ScriptedBackend()
    shadows, _ = shadows_of(backend, {"m": shares}, throws, max_images=40)
    for _ in range(len(throws) // len(shares)):
        loop.call_soon(shadows.call_done, query(), images_of(ANSWERED))
    loop.settle()
    assert [pending.call.model_version for pending in backend.calls] == versions
    close(loop, shadows)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (query(), replace(CAT, model_version="2")),
        (RequestSpec("other", "", None, 30, "r"), None),
        (RequestSpec("m", "", Selection(labels=("cat",)), 30, "r"), None),
        (RequestSpec("m", "", None, 30, "r", lowest_priority=True), None),
        (query(), Row(error=UndecodableImage(), model_version="1")),
        (query(), Row(model_version="1")),
        (query(), Row(error=ImageCrashedModel())),
    ],
    ids=["the version that answered", "another model", "chosen labels", "explained", "undecoded", "no class", "failed"],
)
def test_incomparable_requests_are_not_sent_to_the_shadow(loop, asked, answer):
    backend = ScriptedBackend()
    shadows, spare = shadows_of(backend)
    loop.call_soon(shadows.call_done, asked, images_of(answer or ANSWERED))
    loop.settle()
    assert not backend.calls
    assert spare.images.held == 0


def test_part_of_a_batch_beyond_spare_capacity_is_sent(loop):
    backend = ScriptedBackend()
    shadows, _ = shadows_of(backend, max_images=8)
    with counted() as found:
        loop.call_soon(shadows.call_done, query(), images_of(*[ANSWERED] * 3))
        loop.settle()
    assert [len(pending.call.images) for pending in backend.calls] == [2]
    assert found == {"skipped": 1}
    close(loop, shadows)


def test_shadow_is_skipped_while_requests_wait(loop):
    on = Scripted(loop, shadow=ALWAYS, max_images=1)
    first, _ = on.send(PNG), on.send(PNG)
    with counted() as found:
        on.answer()
    assert first.done()
    assert found == {"skipped": 1}
    (second,) = on.pending  # the permit went to who waited
    assert second.call.model_version == ""
    on.answer()
    assert [each.call.model_version for each in on.pending] == ["2"]  # no request waits for it
    on.answer_all()


def test_running_shadow_takes_no_permit(loop):
    on = shadowed(loop, max_images=1)
    on.classify(PNG)
    (shadow,) = on.pending
    with counted() as found:
        for _ in range(3):
            (result,) = on.classify(PNG)
            assert result.error is None
    assert on.pending == [shadow]
    assert found == {"skipped": 3}  # there is one place, and it is taken
    on.answer_all()


@pytest.mark.parametrize("supports_cancellation", [True, False])
def test_slow_shadow_times_out_and_releases_its_lease(loop, supports_cancellation):
    on = shadowed(loop, supports_cancellation=supports_cancellation)
    with counted() as found:
        (result,) = on.classify(PNG)
        loop.pass_time(TIMEOUT_SECONDS)
        loop.settle()
    assert result.error is None
    assert found == {"deadline_exceeded": 1}
    assert on.calls[1].cancelled is supports_cancellation
    spare = on.service.shadows.spare
    assert spare.images.held == (0 if supports_cancellation else 1)
    if not supports_cancellation:
        looks(on.pending[0], 1.0)
        loop.settle()
    assert (spare.images.held, spare.bytes.held, len(on.service.uncancelled)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (TritonUnreachable(), "triton_unreachable"),
        (ModelNotFound(), "model_not_found"),
        (RuntimeError("a bug"), "internal_error"),
        (Row(error=UndecodableImage()), "undecodable_image"),
        (Row(error=ImageCrashedModel()), "image_crashed_model"),
        (scored(np.nan, 0.1), "inference_failed"),
        (scored(), "contract_broken"),
    ],
)
def test_failing_shadow_is_counted_and_affects_no_client(loop, answer, outcome):
    on, before = shadowed(loop), differences()
    with counted() as found:
        (result,) = on.classify(PNG)
        if isinstance(answer, Row):
            on.pending[0].answer(row=answer)
            loop.settle()
        else:
            on.fail(answer)
    assert result.error is None
    assert found == {outcome: 1}
    assert differences() == before
    assert on.service.shadows.spare.images.held == 0


@pytest.mark.parametrize("supports_cancellation", [True, False])
def test_shadow_outlives_the_request_and_ends_with_the_service(loop, supports_cancellation):
    """It gets a moment to end."""
    on = shadowed(loop, supports_cancellation=supports_cancellation)
    on.classify(PNG)
    with counted() as found:
        closing = on.close()
        assert not closing.done()
        loop.pass_time(CLOSING_SECONDS)
        loop.finish(closing)
    assert on.calls[1].cancelled
    assert found == {}
    assert on.service.shadows.spare.images.held == 0


@pytest.mark.parametrize(
    ("row", "scores", "same", "apart"),
    [
        (classes({1: 0.7, 0: 0.2}), (0.2, 0.7, 0.1), True, 0.0),
        (classes({1: 0.7, 0: 0.2}), (0.1, 0.8, 0.1), True, 0.1),
        (classes({1: 0.7, 0: 0.2}), (0.5, 0.4, 0.1), False, 0.3),
        # Its best class is unknown; its score was at most 0.2.
        (classes({1: 0.7, 0: 0.2}), (0.0, 0.4, 0.6), False, 0.4),
        (classes({1: 0.4}), (0.0, 0.1, 0.9), False, 0.5),
        (scored(0.6, 0.3, 0.1), (0.5, 0.3, 0.2), True, 0.1),
    ],
)
def test_difference_is_the_largest_among_the_answered_classes(row, scores, same, apart):
    assert difference(row, np.array(scores, np.float32)) == (same, pytest.approx(apart, abs=1e-6))


@pytest.mark.parametrize("row", [scored(1, 1, 1), classes({2: 1.0})], ids=["scores", "classes"])
def test_versions_with_other_classes_cannot_be_compared(row):
    with pytest.raises(ContractBroken):
        difference(row, np.ones(2, np.float32))


def shadows_of(
    backend: ScriptedBackend, shares: Any = ALWAYS, throws: list[float] | None = None, **limits: int
) -> tuple[Shadows, SpareCapacity]:
    """Shadows alone; `throws` are the random numbers."""
    service = service_of(backend, shadow=shares, max_images=limits.pop("max_images", 8))
    left = iter(throws or [])
    chance = (lambda: next(left)) if throws else (lambda: 0.0)
    shadows = Shadows(service, chance=chance)
    return shadows, shadows.spare


def close(loop: Loop, shadows: Shadows) -> None:
    """Cancel the calls."""
    loop.finish(start(loop, shadows.tasks.close()))
    assert shadows.spare.images.held == 0


def test_start_of_a_failure_is_logged_once(loop):
    backend = ScriptedBackend()
    shadows, _ = shadows_of(backend)
    outcomes: list[GatewayError | None] = [ModelNotFound(), ModelNotFound(), None, ModelNotFound()]
    with structlog.testing.capture_logs() as captured:
        for outcome in outcomes:
            loop.call_soon(shadows.call_done, query(), images_of(ANSWERED))
            loop.settle()
            (pending,) = backend.pending
            if outcome is None:
                looks(pending, 0.9)
            else:
                pending.fail(outcome)
            loop.settle()
    assert [event["event"] for event in captured] == ["shadow_fails"] * 2
    assert (captured[0]["model"], captured[0]["version"], captured[0]["code"]) == ("m", "2", "model_not_found")


def test_spare_capacity_is_a_quarter_of_each_limit():
    spare = SpareCapacity(Admission(max_images=8, max_bytes=800, max_images_waiting=1, max_wait_seconds=1))
    assert spare.take(3, 3) is None
    assert spare.take(1, 201) is None
    lease = spare.take(2, 200)
    assert spare.take(1, 0) is None
    lease.release()
    lease.release()
    assert (spare.images.held, spare.bytes.held) == (0, 0)
