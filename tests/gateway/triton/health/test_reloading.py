"""One attempt to reload: its lock, its order of unloads and loads, and its backoff."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.triton.health.reloading import (
    FIRST_BACKOFF_SECONDS,
    INEFFECTIVE_BACKOFF_SECONDS,
    LAST_BACKOFF_SECONDS,
    ModelReloader,
    ReloadOutcome,
)
from gateway.values.files import lock_folder, machine_lock
from tests.doubles.triton import FakeEndpoint, FakeTriton

STEPS, ENSEMBLE = ["net"], ["ensemble_model"]
RELOAD = [("unload", "net"), ("load", "net"), ("load", "ensemble_model")]


class Reloading:
    """A ModelReloader with a FakeTriton and a clock that the test sets."""

    def __init__(self, triton: FakeTriton | None = None, *, gets_lock: bool = True) -> None:
        self.triton = triton or FakeTriton()
        self.now = 1_000.0
        self.locked: list[str] = []
        self.gets_lock = gets_lock
        self.reloader = ModelReloader(
            FakeEndpoint("10.0.0.1:8001", self.triton),
            jitter_seconds=0.0,
            clock=lambda: self.now,
            take_lock=self._take_lock,
        )

    @contextmanager
    def _take_lock(self, address: str) -> Iterator[bool]:
        self.locked.append(address)
        yield self.gets_lock

    async def in_service(self) -> set[str]:
        index = await FakeEndpoint("10.0.0.1:8001", self.triton).index()
        return {model.name for model in index.models if model.state == "READY"}

    async def reload(self, *, still_fails: bool = True, steps: list[str] = STEPS) -> ReloadOutcome:
        async def fails() -> bool:
            return still_fails

        return await self.reloader.reload(steps, ENSEMBLE, fails)


async def test_steps_are_reloaded_before_their_ensembles():
    reloading = Reloading()
    assert await reloading.reload() is ReloadOutcome.RELOADED
    assert reloading.triton.done == RELOAD
    assert reloading.locked == ["10.0.0.1:8001"]
    assert reloading.reloader.status == "reloaded in 0.0 s"


@pytest.mark.parametrize(
    ("reloading", "still_fails", "outcome", "status"),
    [
        (lambda: Reloading(gets_lock=False), True, ReloadOutcome.OTHERS, "another gateway is reloading"),
        (lambda: Reloading(FakeTriton(unloaded={"net"})), True, ReloadOutcome.OTHERS, None),
        (Reloading, False, ReloadOutcome.STALE, "idle"),
        (lambda: Reloading(FakeTriton(away=True)), True, ReloadOutcome.TOO_EARLY, None),
    ],
    ids=["no lock", "step unloaded by another gateway", "recovered before the lock", "unreachable"],
)
async def test_nothing_is_reloaded(reloading, still_fails, outcome, status):
    reloading = reloading()
    assert await reloading.reload(still_fails=still_fails) is outcome
    assert reloading.triton.done == []
    assert status in {None, reloading.reloader.status}


@pytest.mark.parametrize(("proved", "longest"), [(False, LAST_BACKOFF_SECONDS), (True, FIRST_BACKOFF_SECONDS)])
async def test_reload_intervals_grow_until_a_reload_is_effective(proved, longest):
    reloading, intervals = Reloading(), []
    for _ in range(10):
        assert await reloading.reload() is ReloadOutcome.RELOADED
        if proved:
            reloading.reloader.report_effect(STEPS, [])
        before = reloading.now
        while await reloading.reload() is ReloadOutcome.TOO_EARLY:
            reloading.now += 0.5
        intervals.append(reloading.now - before)
        reloading.now += 2 * LAST_BACKOFF_SECONDS
    assert intervals[0] == FIRST_BACKOFF_SECONDS
    assert intervals == sorted(intervals)
    assert intervals[-1] == longest


async def test_ineffective_reload_has_a_longer_backoff():
    reloading = Reloading()
    for _ in range(20):
        reloading.reloader.report_effect(STEPS, ENSEMBLE)
    assert reloading.reloader.status == "reloading does not repair ensemble_model: restart this Triton"
    reloading.now += INEFFECTIVE_BACKOFF_SECONDS - 1
    assert await reloading.reload() is ReloadOutcome.TOO_EARLY
    reloading.now += 1
    assert await reloading.reload() is ReloadOutcome.RELOADED


async def test_step_left_unloaded_is_loaded_at_the_next_attempt():
    reloading = Reloading(FakeTriton(refuses_to_load={"net"}))
    assert await reloading.reload() is ReloadOutcome.FAILED
    assert reloading.reloader.status.startswith("failed: ")
    assert await reloading.reload() is ReloadOutcome.TOO_EARLY
    reloading.triton.refuses_to_load.clear()
    reloading.now += FIRST_BACKOFF_SECONDS
    # The step is not READY, but no other gateway is reloading it.
    assert await reloading.reload() is ReloadOutcome.RELOADED
    assert await reloading.in_service() == {"ensemble_model", "preprocessor", "net"}


async def test_reload_is_completed_when_the_gateway_stops():
    reloading = Reloading(FakeTriton(load_seconds=0.05))
    attempt = asyncio.ensure_future(reloading.reload())
    for _ in range(100):
        if reloading.triton.done:
            break
        await asyncio.sleep(0)
    assert reloading.triton.done == [("unload", "net")]
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert reloading.triton.done == RELOAD


async def test_missing_model_is_loaded_at_growing_intervals():
    """The intervals grow to LAST_BACKOFF_SECONDS while the model cannot be loaded."""

    reloading, intervals = Reloading(FakeTriton(failed={"net": "no memory"}, refuses_to_load={"net"})), []
    assert await reloading.reloader.load("net")
    for _ in range(12):
        before = reloading.now
        while not await reloading.reloader.load("net"):
            reloading.now += 0.1
        intervals.append(reloading.now - before)
    assert intervals[0] == pytest.approx(FIRST_BACKOFF_SECONDS, abs=0.2)
    assert intervals == sorted(intervals)
    assert intervals[-1] == pytest.approx(LAST_BACKOFF_SECONDS, abs=0.2)
    reloading.triton.refuses_to_load.clear()
    reloading.now += 2 * LAST_BACKOFF_SECONDS
    assert await reloading.reloader.load("net")
    assert "net" in await reloading.in_service()


@pytest.mark.parametrize(("triton", "gets_lock"), [({}, True), ({"failed": {"net": "no memory"}}, False)])
async def test_served_model_and_one_that_another_gateway_loads_are_not_loaded(triton, gets_lock):
    reloading = Reloading(FakeTriton(**triton), gets_lock=gets_lock)
    assert not await reloading.reloader.load("net")
    assert reloading.triton.done == []


def test_lock_is_held_by_one_and_then_the_next(tmp_path):
    with (
        machine_lock("triton:8001", tmp_path) as mine,
        machine_lock("triton:8001", tmp_path) as other,
        machine_lock("another:8001", tmp_path) as elsewhere,
    ):
        assert (mine, other, elsewhere) == (True, False, True)
    with machine_lock("triton:8001", tmp_path) as mine:
        assert mine


def test_lock_folder_is_not_a_shared_temporary_folder():
    assert lock_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/triton-image-gateway")
    assert lock_folder({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/triton-image-gateway/locks")
    assert lock_folder({}) == Path.home() / ".cache" / "triton-image-gateway" / "locks"


def test_every_process_gets_the_lock_without_a_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with machine_lock("triton:8001", file / "folder") as mine, machine_lock("triton:8001", file / "folder") as other:
        assert mine
        assert other
