"""One attempt to heal: what is unloaded and loaded, in which order, and when it is left alone."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.triton.fake_endpoint import FakeEndpoint, FakeTriton
from gateway.triton.health.reloading import (
    FIRST_BACKOFF_SECONDS,
    LAST_BACKOFF_SECONDS,
    LOAD_JITTER,
    VAIN_BACKOFF_SECONDS,
    ModelReloader,
    ReloadOutcome,
)

STEPS, ENSEMBLE = ["net"], ["ensemble_model"]
RELOAD = [("unload", "net"), ("load", "net"), ("load", "ensemble_model")]


class Healing:
    """A healer over a fake, with a clock that the test turns on."""

    def __init__(self, triton: FakeTriton | None = None, *, its_turn: bool = True) -> None:
        self.triton = triton or FakeTriton()
        self.now = 1_000.0
        self.turns: list[str] = []
        self.its_turn = its_turn
        self.healer = ModelReloader(
            FakeEndpoint("10.0.0.1:8001", self.triton),
            jitter_seconds=0.0,
            clock=lambda: self.now,
            take_turn=self._take_turn,
        )

    @contextmanager
    def _take_turn(self, address: str) -> Iterator[bool]:
        self.turns.append(address)
        yield self.its_turn

    async def reload(self, *, still_fails: bool = True, steps: list[str] = STEPS) -> ReloadOutcome:
        async def tried() -> bool:
            return still_fails

        return await self.healer.reload(steps, ENSEMBLE, tried)


def test_steps_are_unloaded_and_loaded_and_then_the_ensembles_over_them():
    healing = Healing()
    assert asyncio.run(healing.reload()) is ReloadOutcome.RELOADED
    assert healing.triton.done == RELOAD
    assert healing.turns == ["10.0.0.1:8001"]
    assert healing.healer.status == "healed in 0.0 s"


def test_an_ensemble_that_somebody_unloaded_stays_unloaded():
    healing = Healing(FakeTriton(unloaded={"ensemble_model"}))
    assert asyncio.run(healing.reload()) is ReloadOutcome.RELOADED
    assert healing.triton.done == RELOAD[:2]


def test_while_another_gateway_has_the_turn_nothing_is_touched():
    healing = Healing(its_turn=False)
    assert asyncio.run(healing.reload()) is ReloadOutcome.OTHERS
    assert healing.triton.done == []
    assert healing.healer.status == "another gateway heals"


def test_a_step_that_another_gateway_has_unloaded_is_left_to_it():
    healing = Healing(FakeTriton(unloaded={"net"}))
    assert asyncio.run(healing.reload()) is ReloadOutcome.OTHERS
    assert healing.triton.done == []


def test_what_no_longer_fails_under_ones_own_turn_is_not_reloaded():
    healing = Healing()
    assert asyncio.run(healing.reload(still_fails=False)) is ReloadOutcome.STALE
    assert healing.triton.done == []
    assert healing.healer.status == "idle"


def test_a_triton_that_is_away_is_not_reloaded():
    healing = Healing(FakeTriton(away=True))
    assert asyncio.run(healing.reload()) is ReloadOutcome.TOO_EARLY
    assert asyncio.run(healing.healer.states()) == set()


@pytest.mark.parametrize(("proved", "longest"), [(False, LAST_BACKOFF_SECONDS), (True, FIRST_BACKOFF_SECONDS)])
def test_a_model_that_dies_at_once_is_reloaded_at_growing_intervals_until_it_has_proved_itself(proved, longest):
    async def test() -> None:
        healing, intervals = Healing(), []
        for _ in range(10):
            assert await healing.reload() is ReloadOutcome.RELOADED
            if proved:
                healing.healer.proved(STEPS)
            before = healing.now
            while await healing.reload() is ReloadOutcome.TOO_EARLY:
                healing.now += 0.5
            intervals.append(healing.now - before)
            healing.now += 2 * LAST_BACKOFF_SECONDS
        assert intervals[0] == FIRST_BACKOFF_SECONDS
        assert intervals == sorted(intervals)
        assert intervals[-1] == longest

    asyncio.run(test())


def test_what_reloading_did_not_mend_is_said_and_left_alone_for_longer():
    async def test() -> None:
        healing = Healing()
        for _ in range(20):
            healing.healer.report_ineffective(STEPS, ENSEMBLE)
        assert healing.healer.status == "reloading does not repair ensemble_model: restart this Triton"
        healing.now += VAIN_BACKOFF_SECONDS - 1
        assert await healing.reload() is ReloadOutcome.TOO_EARLY
        healing.now += 1
        assert await healing.reload() is ReloadOutcome.RELOADED

    asyncio.run(test())


def test_each_set_of_steps_has_intervals_of_its_own():
    async def test() -> None:
        healing = Healing()
        healing.healer.report_ineffective(["preprocessor"], ENSEMBLE)
        assert await healing.reload(steps=["preprocessor"]) is ReloadOutcome.TOO_EARLY
        assert await healing.reload(steps=["net"]) is ReloadOutcome.RELOADED

    asyncio.run(test())


def test_what_was_unloaded_here_and_could_not_be_loaded_is_loaded_at_the_next_attempt():
    async def test() -> None:
        healing = Healing(FakeTriton(refuses_to_load={"net"}))
        assert await healing.reload() is ReloadOutcome.FAILED
        assert healing.healer.status.startswith("failed: ")
        assert await healing.reload() is ReloadOutcome.TOO_EARLY
        healing.triton.refuses_to_load.clear()
        healing.now += FIRST_BACKOFF_SECONDS
        # Not READY, and no other gateway's work all the same.
        assert await healing.reload() is ReloadOutcome.RELOADED
        assert await healing.healer.states() == {"ensemble_model", "preprocessor", "net"}

    asyncio.run(test())


def test_a_gateway_that_stops_while_it_heals_loads_what_it_has_unloaded():
    async def test() -> None:
        healing = Healing(FakeTriton(load_seconds=0.05))
        attempt = asyncio.ensure_future(healing.reload())
        for _ in range(100):
            if healing.triton.done:
                break
            await asyncio.sleep(0)
        assert healing.triton.done == [("unload", "net")]
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        assert healing.triton.done == RELOAD

    asyncio.run(test())


def test_missing_model_is_loaded_at_growing_intervals():
    """They grow to LAST_BACKOFF_SECONDS, and no further, for as long as the model cannot be loaded."""

    async def test() -> None:
        healing, intervals = Healing(FakeTriton(failed={"net": "no memory"}, refuses_to_load={"net"})), []
        assert await healing.healer.load("net")
        for _ in range(12):
            before = healing.now
            while not await healing.healer.load("net"):
                healing.now += 0.1
            intervals.append(healing.now - before)
        assert (
            FIRST_BACKOFF_SECONDS * (1 - LOAD_JITTER) <= intervals[0] <= FIRST_BACKOFF_SECONDS * (1 + LOAD_JITTER) + 1
        )
        assert intervals[3] > 2 * intervals[1]
        assert LAST_BACKOFF_SECONDS * (1 - LOAD_JITTER) <= intervals[-1] <= LAST_BACKOFF_SECONDS * (1 + LOAD_JITTER) + 1
        healing.triton.refuses_to_load.clear()
        healing.now += 2 * LAST_BACKOFF_SECONDS
        assert await healing.healer.load("net")
        assert "net" in await healing.healer.states()

    asyncio.run(test())


def test_served_model_is_not_loaded_again():
    healing = Healing()
    assert not asyncio.run(healing.healer.load("net"))
    assert healing.triton.done == []


def test_missing_model_that_another_gateway_loads_is_left_to_it():
    healing = Healing(FakeTriton(failed={"net": "no memory"}), its_turn=False)
    assert not asyncio.run(healing.healer.load("net"))
    assert healing.triton.done == []
