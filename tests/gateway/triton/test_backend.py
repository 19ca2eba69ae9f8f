"""Calls find a ready Triton or are held; each is retried once; a crashing image ends two processes at most."""

import asyncio
import contextlib
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gateway import metrics
from gateway.errors import (
    GatewayError,
    ModelNotFound,
    ModelUnavailable,
    SequenceUnknown,
    TritonUnreachable,
)
from gateway.inference.backend import Call, SequenceStep
from gateway.timing import Deadline
from gateway.triton.client import StubDied
from gateway.triton.contract import SEQUENCE_MODEL
from gateway.triton.replica import Replica
from tests.doubles.triton import KILLER, FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import MODEL, Fleet, call_of, fleet_of, wait_until


def outcomes(rows) -> list[str]:
    return [row.error.code if row.error else "ok" for row in rows]


@pytest.mark.parametrize("number", [1, 2])
async def test_triton_that_returns_during_retries_answers(number):
    """The retry is sent to no other Triton that is not ready."""
    async with fleet_of(number) as fleet:
        triton, *others = fleet.tritons.values()
        for other in others:
            other.away = True
        await wait_until(lambda: fleet.ready() == 1)
        triton.away = True
        asyncio.get_running_loop().call_later(0.03, setattr, triton, "away", False)
        assert outcomes(await fleet.backend.infer(call_of(b"image"))) == ["ok"]


async def test_unknown_model_error_has_the_requested_name_and_version():
    async with fleet_of(2) as fleet:
        with pytest.raises(ModelNotFound, match="'nope' version 3"):
            await fleet.backend.infer(call_of(b"image", model="nope", version="3"))


async def test_crashing_image_is_never_sent_a_third_time():
    async with fleet_of(4, heal=False) as fleet:
        answer = await fleet.backend.infer(call_of(b"good", KILLER, b"good as well"))
        assert outcomes(answer) == ["ok", "image_crashed_model", "ok"]
        assert sum(bool(triton.dead) for triton in fleet.tritons.values()) == 2
        calls = [call for triton in fleet.tritons.values() for call in triton.calls if KILLER in call.images]
        assert sorted(len(call.images) for call in calls) == [1, 3]  # listed by Triton, not by time


async def test_crashing_image_is_sent_once_to_a_single_triton():
    async with fleet_of(1) as fleet:
        (triton,) = fleet.tritons.values()
        with pytest.raises(StubDied):
            await fleet.backend.infer(call_of(KILLER, b"good"))
        assert sum(KILLER in call.images for call in triton.calls) == 1
        await fleet.all_ready()
        assert outcomes(await fleet.backend.infer(call_of(b"good"))) == ["ok"]


async def test_images_that_share_a_dead_triton_with_a_crashing_image_are_not_blamed():
    """Calls of other requests die with the crashing image's process, and are repeated where it is repeated, too."""
    async with fleet_of(2, latency_seconds=lambda: 0.02) as fleet:
        calls = [call_of(b"good %d" % number) for number in range(8)]
        answers = await asyncio.gather(
            *map(fleet.backend.infer, [*calls[:4], call_of(KILLER), *calls[4:]]), return_exceptions=True
        )
        killer = answers.pop(4)
        assert isinstance(killer, GatewayError) or outcomes(killer) != ["ok"]
        for answer in answers:
            assert isinstance(answer, ModelUnavailable) or outcomes(answer)[0] in {"ok", "model_unavailable"}


async def test_no_image_is_blamed_for_a_process_that_was_dead_before():
    async with fleet_of(2, heal=False, instances=2) as fleet:
        first, second = fleet.tritons.values()
        # No probe has found yet that both have a dead process.
        first.kill("net")
        second.kill("net")
        for number in range(10):
            try:
                assert set(outcomes(await fleet.backend.infer(call_of(b"image %d" % number)))) <= {
                    "ok",
                    "model_unavailable",
                }
            except ModelUnavailable:
                continue


async def test_other_models_serve_while_the_default_model_is_down():
    ensembles = {MODEL: ("preprocessor", "net"), "flowers": ("flowers_preprocessor", "flowers_net")}
    async with fleet_of(2, ensembles=ensembles, recovers_on_reload=False) as fleet:
        for triton in fleet.tritons.values():
            triton.failing.add("net")
        await wait_until(lambda: fleet.ready() == 0)
        assert outcomes(await fleet.backend.infer(call_of(b"image", model="flowers"))) == ["ok"]


def aside(*images: bytes) -> Call:
    return replace(call_of(*images), best_effort=True)


@pytest.mark.parametrize(("best_effort", "times"), [(False, 2), (True, 1)])
async def test_call_is_sent_twice_and_a_best_effort_call_once(best_effort, times):
    call = aside(b"image") if best_effort else call_of(b"image", seconds=60)
    async with fleet_of(4, heal=False) as fleet:
        for replica in fleet.pool.replicas:
            await replica.infer(call)  # reads the configuration, so that the next call is sent
        retries = metrics.RETRIES._value.get()
        for triton in fleet.tritons.values():
            triton.calls.clear()
            triton.unloaded.add("net")
        with pytest.raises(ModelUnavailable):
            await fleet.backend.infer(call)
        calls = [each for triton in fleet.tritons.values() for each in triton.calls if each.request_id == "test"]
        assert len(calls) == times
        assert metrics.RETRIES._value.get() == retries + times - 1


async def test_best_effort_call_needs_a_ready_triton():
    async with fleet_of(1, heal=False) as fleet:
        (triton,) = fleet.tritons.values()
        triton.away = True
        await wait_until(lambda: not fleet.ready())
        triton.failing.add("net")
        triton.away = False
        with pytest.raises(ModelUnavailable):
            await fleet.backend.infer(aside(b"image"))
        assert not any(call.best_effort for call in triton.calls)


@pytest.mark.parametrize("dead", [False, True])
async def test_best_effort_call_does_not_affect_model_health(dead):
    seen: list[str] = []
    health = SimpleNamespace(answered=lambda *_: seen.append("answered"), suspect=lambda *_: seen.append("suspect"))
    triton = FakeTriton(dead={"net"} if dead else set())
    replica = Replica(FakeEndpoint("10.0.0.1:8001", triton), health, None)
    for call in (aside(b"image"), call_of(b"image")):
        with contextlib.suppress(StubDied):
            await replica.infer(call)
    assert seen == ["suspect" if dead else "answered"]  # recorded for the second call only


async def all_away(fleet: Fleet) -> None:
    for triton in fleet.tritons.values():
        triton.away = True
    await wait_until(lambda: fleet.ready() == 0)


async def test_held_calls_are_answered_once_a_triton_is_ready():
    async with fleet_of(2, hold_seconds=60) as fleet:
        await all_away(fleet)
        calls = [asyncio.ensure_future(fleet.backend.infer(call_of(b"image %d" % n, seconds=60))) for n in range(3)]
        done, _ = await asyncio.wait(calls, timeout=0.3)
        assert not done, "no Triton was ready to answer"
        for triton in fleet.tritons.values():
            triton.away = False
        for (row,) in await asyncio.gather(*calls):
            assert row.error is None


@pytest.mark.parametrize(
    ("hold_seconds", "seconds", "least"),
    [(0.0, 3600, 0.0), (0.3, 3600, 0.3), (3600, 0.3, 0.0)],
    ids=["without the setting", "hold time", "deadline"],
)
async def test_call_is_held_up_to_the_hold_time_and_its_deadline(hold_seconds, seconds, least):
    async with fleet_of(1, hold_seconds=hold_seconds) as fleet:
        await all_away(fleet)
        started = time.monotonic()
        async with asyncio.timeout(20):
            with pytest.raises(TritonUnreachable if least or not hold_seconds else GatewayError):
                await fleet.backend.infer(call_of(b"image", seconds=seconds))
        assert time.monotonic() - started >= least


def sequence_step(sequence_id: int, *, start: bool = False, end: bool = False) -> SequenceStep:
    return SequenceStep("", sequence_id, np.zeros(2, np.float32), {}, Deadline.after(60), "id", start, end)


async def test_id_selects_the_triton_of_a_clients_sequence():
    async with fleet_of(3) as fleet, fleet_of(3) as other:
        for number in range(1, 30):
            assert (await fleet.backend.add_to_sequence(MODEL, "", sequence_step(number, start=True))).frames == 1
            assert (await fleet.backend.add_to_sequence(MODEL, "", sequence_step(number))).frames == 2
            await other.backend.add_to_sequence(MODEL, "", sequence_step(number, start=True))
        at = {address: set(triton.sequences) for address, triton in fleet.tritons.items()}
        assert all(at.values())
        assert at == {address: set(triton.sequences) for address, triton in other.tritons.items()}


async def test_sequence_is_unknown_where_it_has_no_state():
    async with fleet_of(1) as fleet:
        with pytest.raises(SequenceUnknown, match="with another 'sequence_id'"):
            await fleet.backend.add_to_sequence(MODEL, "", sequence_step(1))
        await fleet.backend.add_to_sequence(MODEL, "", sequence_step(1, start=True))
        await fleet.backend.add_to_sequence(MODEL, "", sequence_step(1, end=True))
        with pytest.raises(SequenceUnknown):
            await fleet.backend.add_to_sequence(MODEL, "", sequence_step(1))


async def test_sequences_find_their_triton_before_the_first_probe():
    """One worker of a gateway may report that it is ready before another one has probed a Triton."""
    async with fleet_of(3, heal=False) as fleet:
        for number in range(1, 10):
            await fleet.backend.add_to_sequence(MODEL, "", sequence_step(number, start=True))
        for address, triton in fleet.tritons.items():
            for number in list(triton.sequences):
                fleet.pool.in_use[address].health.default.tried_at = None  # while others are known to be ready
                assert (await fleet.backend.add_to_sequence(MODEL, "", sequence_step(number))).frames == 2
        fresh = Fleet(fleet.tritons, heal=False)
        for triton in fleet.tritons.values():
            triton.failing.add("net")  # as if no probe had succeeded yet
        await fresh.backend.start()
        try:
            for number in range(1, 10):
                assert (await fresh.backend.add_to_sequence(MODEL, "", sequence_step(number))).frames == 3
            stream = await fresh.backend.sequence(MODEL, "")
            assert (await stream.add(np.zeros(2, np.float32), {}, Deadline.after(60), "id")).frames == 1
            assert not fresh.ready()
        finally:
            await fresh.backend.close()


async def test_frame_is_sent_again_only_to_a_ready_triton():
    """Another one may be hung, and would hold the frame until its deadline."""
    async with fleet_of(2, heal=False) as fleet:
        failing, away = fleet.tritons.values()
        away.away = True
        await wait_until(lambda: fleet.ready() == 1)
        failing.dead.add(SEQUENCE_MODEL)
        stream = await fleet.backend.sequence(MODEL, "")
        with pytest.raises(StubDied):
            await stream.add(np.zeros(2, np.float32), {}, Deadline.after(60), "id")


async def test_sequence_without_a_triton_gets_the_error_of_the_call():
    async with fleet_of(1) as fleet:
        (triton,) = fleet.tritons.values()
        triton.away = True
        await wait_until(lambda: not fleet.ready())
        with pytest.raises(TritonUnreachable):
            await fleet.backend.add_to_sequence(MODEL, "", sequence_step(1, start=True))
