"""Fake Triton servers in this process, and a gateway's objects over them, with short intervals."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.inference.backend import Call
from gateway.inference.result import Selection
from gateway.timing import Deadline
from gateway.triton.backend import TritonBackend
from gateway.triton.health.checker import HealthChecker
from gateway.triton.health.recovery import RecoveringChecker
from gateway.triton.health.state import ExpectedModels, HealthState, Schedule
from gateway.triton.opening import open_pool
from gateway.triton.wire import Signer
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.settings import Settings

MODEL = "ensemble_model"
STEPS = ("preprocessor", "net")
TWO = {MODEL: STEPS, "flowers": ("flowers_preprocessor", "flowers_net")}
SIGNER = Signer(b"secret of a test")
SCHEDULE = Schedule(0.02, 1.0, quick_seconds=0.01, orphaned_seconds=0.1)


def call_of(*images: bytes, model: str = MODEL, version: str = "", seconds: float = 5) -> Call:
    return Call(
        images,
        model,
        version,
        Selection(),
        Deadline.after(seconds),
        "test",
        [SIGNER.sign(image) for image in images],
    )


async def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.005)


async def due(checker: HealthChecker) -> None:
    """Wait until every model is to be probed again."""
    state = checker.state
    await wait_until(lambda: all(state.is_due(model) for model in state.models.values()))


def checker_of(
    triton: FakeTriton,
    *,
    clock: Callable[[], float] = time.monotonic,
    endpoint: FakeEndpoint | None = None,
    schedule: Schedule = SCHEDULE,
) -> RecoveringChecker:
    endpoint = endpoint or FakeEndpoint("10.0.0.1:8001", triton)
    state = HealthState(endpoint.address, ExpectedModels(MODEL), schedule, clock)
    return RecoveringChecker(endpoint, state)


async def settled(checker: RecoveringChecker) -> None:
    for _ in range(3):
        await checker.probe_all()
        await checker.reload_failing()


async def watched(triton: FakeTriton | None = None, **options: Any) -> tuple[FakeTriton, RecoveringChecker]:
    """A Triton and its checker, which has probed it."""
    triton = triton or FakeTriton()
    checker = checker_of(triton, **options)
    await settled(checker)
    return triton, checker


def ready(checker: HealthChecker) -> dict[str, bool]:
    return {model.name: model.ready for model in checker.state.summary().models}


@asynccontextmanager
async def running(checker: HealthChecker) -> AsyncIterator[None]:
    """Run the checker during the block."""
    task = asyncio.create_task(checker.run())
    try:
        yield
    finally:
        task.cancel()


class Fleet:
    """Fakes by address, behind one backend."""

    def __init__(self, tritons: dict[str, FakeTriton], *, heal: bool, hold_seconds: float = 0.0):
        self.tritons = tritons
        self.addresses = list(tritons)
        self.endpoints: list[FakeEndpoint] = []
        held = {"hold_without_triton": True, "max_wait_seconds": hold_seconds} if hold_seconds else {}
        settings = Settings(_env_file=None, model=MODEL, heal=heal, triton_url="triton:8001", **held)
        self.pool = open_pool(settings, self._connect, lookup=self._look_up, schedule=SCHEDULE)
        self.backend = TritonBackend(self.pool, settings)

    def _connect(self, address: str) -> FakeEndpoint:
        self.endpoints.append(FakeEndpoint(address, self.tritons[address]))
        return self.endpoints[-1]

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        return list(self.addresses)

    def ready(self) -> int:
        return sum(health.ready for health in self.backend.health())

    async def all_ready(self) -> None:
        await wait_until(lambda: self.ready() == len(self.backend.health()))


@asynccontextmanager
async def fleet_of(
    number: int = 1, *, heal: bool = True, hold_seconds: float = 0.0, **triton: object
) -> AsyncIterator[Fleet]:
    tritons = {f"10.0.0.{index}:8001": FakeTriton(**triton) for index in range(1, number + 1)}
    fleet = Fleet(tritons, heal=heal, hold_seconds=hold_seconds)
    await fleet.backend.start()
    try:
        await fleet.all_ready()
        yield fleet
    finally:
        await fleet.backend.close()
