"""Tritons that a test may break, and load on the gateway in front of them."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.photos import photo, unlike_any
from tests.processes import Gateway, running_gateway

StartGateway = Callable[..., AbstractContextManager[Gateway]]


@pytest.fixture
def start_triton(runtime: TritonRuntime, light_repository: Path) -> Iterator[Callable[[], EmbeddedTriton]]:
    """Starts a Triton of the test's own."""
    servers: list[EmbeddedTriton] = []

    def start() -> EmbeddedTriton:
        servers.append(EmbeddedTriton(runtime, light_repository, on_log=print))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop(grace_seconds=0)


@pytest.fixture
def start_gateway(tmp_path: Path) -> StartGateway:
    number = itertools.count()

    def start(**settings: object) -> AbstractContextManager[Gateway]:
        return running_gateway(tmp_path / f"gateway-{next(number)}.log", **settings)

    return start


@dataclass
class Load:
    """Clients that send one new image after another, each on a connection of its own."""

    url: str
    clients: int = 8
    model: str = ""
    """Another than the default one."""
    pause_seconds: float = 0.03
    """After each answer: a load that takes both cores keeps what it waits for from happening."""
    headers: dict[str, str] = field(default_factory=dict)
    answers: list[tuple[float, float, int | str]] = field(default_factory=list)
    """When each request was sent and answered (time.monotonic), and its status or what its connection failed with."""

    def __enter__(self) -> "Load":
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(150)
            assert not thread.is_alive(), "a request hangs"

    def _run(self) -> None:
        params = {"model": self.model} if self.model else {}
        with httpx.Client(base_url=self.url, params=params, headers=self.headers, timeout=120) as http:
            while not self._stop.is_set():
                outcome: int | str
                sent_at = time.monotonic()
                try:
                    outcome = http.post("/predict", files={"f": ("c.jpg", unlike_any(photo("cat")))}).status_code
                except httpx.TransportError as exc:
                    outcome = type(exc).__name__
                self.answers.append((sent_at, time.monotonic(), outcome))
                self._stop.wait(self.pause_seconds if outcome == 200 else 0.1)

    def outcomes(self, since: float = 0.0) -> Counter[int | str]:
        """The outcomes of answered requests that were sent at `since` or later."""
        return Counter(outcome for sent_at, _, outcome in list(self.answers) if sent_at >= since)


def ready(gateway: Gateway) -> bool:
    return httpx.get(f"{gateway.url}/health/ready", timeout=60).status_code == 200
