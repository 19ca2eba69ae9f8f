"""Tritons that a test may break, and load on the gateway in front of them."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.photos import photo, unlike_any
from tests.processes import Gateway, running_gateway

StartGateway = Callable[..., AbstractContextManager[Gateway]]
StartTriton = Callable[..., EmbeddedTriton]


@pytest.fixture
def start_triton(runtime: TritonRuntime, light_repository: Path) -> Iterator[StartTriton]:
    """Starts a Triton of the test's own, by default with the light models."""
    with ExitStack() as running:

        def start(repository: Path = light_repository) -> EmbeddedTriton:
            server = EmbeddedTriton(runtime, repository, on_log=print)
            running.callback(server.stop, grace_seconds=0)
            server.start()
            return server

        yield start


@pytest.fixture
def two_tritons(start_triton: StartTriton) -> list[EmbeddedTriton]:
    """Two Tritons of the test's own, which are ready."""
    tritons = [start_triton(), start_triton()]
    for triton in tritons:
        triton.wait_ready()
    return tritons


def urls_of(tritons: list[EmbeddedTriton]) -> str:
    """The setting for these Tritons."""
    return ",".join(triton.url for triton in tritons)


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


def health(gateway: Gateway) -> httpx.Response:
    """What the gateway says of itself and its Tritons."""
    return httpx.get(f"{gateway.url}/health/ready", timeout=60)


def ready(gateway: Gateway) -> bool:
    return health(gateway).status_code == 200


def endpoints(gateway: Gateway) -> list[dict[str, Any]]:
    """What the gateway says of each Triton."""
    return health(gateway).json()["endpoints"]


def all_ready(gateway: Gateway) -> bool:
    """Whether every Triton is ready."""
    return all(endpoint["ready"] for endpoint in endpoints(gateway))


def classify(gateway: Gateway, *images: bytes, **params: object) -> httpx.Response:
    """The answer to images, by default to one that no cache has."""
    files = [("f", (f"{index}.jpg", image)) for index, image in enumerate(images or [unlike_any(photo("cat"))])]
    return httpx.post(f"{gateway.url}/predict", files=files, params={"timeout": 60, **params}, timeout=120)


def outcomes(answer: httpx.Response) -> list[str]:
    """The code of each image's error, or `ok`."""
    return [result["error"]["code"] if result["error"] else "ok" for result in answer.json()["results"]]
