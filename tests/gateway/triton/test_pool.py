"""The Triton server of a call: the less loaded of two random ones."""

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from gateway import metrics
from gateway.triton.opening import Addresses
from gateway.triton.pool import least_loaded
from gateway.values.rollout import Rollout
from tests.gateway.triton.fleet import MODEL, call_of, fleet_of, wait_until


async def test_all_tritons_are_used_and_models_loaded_on_all():
    async with fleet_of(12) as fleet:
        for number in range(100):
            await fleet.backend.infer(call_of(b"image %d" % number))
        assert all(triton.calls for triton in fleet.tritons.values())
        await fleet.backend.load("ensemble_model")
        assert all(("load", "ensemble_model") in triton.done for triton in fleet.tritons.values())


async def test_last_change_of_what_answers_applies_is_logged_once_and_shown():
    """While one of two Triton servers has loaded it; when a third one has not, nothing changes."""
    steps = ("preprocessor", "net")
    old, new = (Rollout({"1": 3, "2": share}, since=datetime(2026, 1, share, tzinfo=UTC), by="ops") for share in (1, 9))
    versions = {MODEL: steps, f"{MODEL}.v1": steps, f"{MODEL}.v2": steps}
    share = lambda: metrics.VERSION_SHARE.labels(MODEL, "2")._value.get()  # noqa: E731
    async with fleet_of(3, ensembles=versions, rollouts={MODEL: old.text}) as fleet:
        assert (fleet.backend.rollout(MODEL), fleet.backend.rollout("other"), share()) == (old, None, 0.25)
        with structlog.testing.capture_logs() as captured:
            for triton in list(fleet.tritons.values())[1:]:
                triton.rollouts = {MODEL: new.text}
                await fleet.pool.follow()
        assert (fleet.backend.rollout(MODEL), share()) == (new, 0.75)
        changes = [event for event in captured if event["event"] == "rollout"]
        assert [(event["shares"], event["by"]) for event in changes] == [(new.shares, "ops")]
        assert metrics.ROLLOUT_SINCE.labels(MODEL)._value.get() == new.since.timestamp()
        del fleet.addresses[1:]  # the servers that had loaded it leave
        await wait_until(lambda: len(fleet.pool.replicas) == 1)
        assert (fleet.backend.rollout(MODEL), share()) == (old, 0.25)


async def test_readiness_of_a_model_follows_the_tritons_in_use():
    """A model that only a Triton had that has left is not shown as ready."""
    steps = ("preprocessor", "net")
    shown = lambda: {each.labels["model"] for each in metrics.MODEL_READY.collect()[0].samples}  # noqa: E731
    async with fleet_of(2, ensembles={MODEL: steps}) as fleet:
        fleet.tritons["10.0.0.2:8001"].ensembles = {MODEL: steps, "other": steps}
        await wait_until(lambda: "other" in shown())
        del fleet.addresses[1:]
        await wait_until(lambda: len(fleet.pool.replicas) == 1)
        assert MODEL in shown()
        assert "other" not in shown()


ONE, TWO = "10.0.0.1:8001", "10.0.0.2:8001"


class Dns:
    """Gives its answers one after another, and repeats the last; an exception is raised."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> list[str]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return list(answer)


BOTH = [ONE, TWO]


@pytest.mark.parametrize(
    ("answers", "seen"),
    [
        ([BOTH, OSError("server failure")], [BOTH] * 5),
        ([BOTH, []], [BOTH] * 4),
        ([[ONE], TimeoutError()], [[ONE]] * 3),
        ([BOTH, [ONE], BOTH], [BOTH, [ONE], BOTH]),
        ([[ONE], BOTH], [[ONE], BOTH]),
        ([OSError("no such name"), [ONE]], [["triton:8001"], [ONE]]),
    ],
    ids=["failure", "empty", "slow", "without one", "new", "unresolved"],
)
async def test_addresses_follow_the_lookups(answers, seen):
    addresses, before = Addresses(["triton:8001"], Dns(*answers)), metrics.DNS_FAILURES._value.get()
    assert [await addresses.current() for _ in seen] == seen
    if answers[0] == BOTH and isinstance(answers[1], OSError):
        assert metrics.DNS_FAILURES._value.get() == before + len(seen) - 1


async def test_ip_address_is_not_looked_up():
    addresses = Addresses(["127.0.0.1:8001", "[::1]:8001"], Dns(OSError("looked up")))
    assert await addresses.current() == ["127.0.0.1:8001", "[::1]:8001"]


async def test_tritons_stay_in_use_while_dns_fails():
    async with fleet_of(3) as fleet:
        addresses = fleet.addresses
        fleet.addresses = []
        failures = metrics.DNS_FAILURES._value.get()
        await wait_until(lambda: metrics.DNS_FAILURES._value.get() > failures + 5)
        assert len(fleet.backend.health()) == 3
        assert not any(endpoint.closed for endpoint in fleet.endpoints)
        fleet.addresses = addresses[:1]
        await wait_until(lambda: len(fleet.backend.health()) == 1)


def test_replica_with_fewer_images_in_flight_is_chosen():
    idle, busy = SimpleNamespace(images=0), SimpleNamespace(images=1)
    replicas: Any = [idle, busy]
    assert all(least_loaded(replicas) is idle for _ in range(9))
    busy.images = 0
    assert {least_loaded(replicas) is idle for _ in range(99)} == {True, False}
