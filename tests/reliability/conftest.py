"""Triton servers that a test may break, and the health that the gateway in front of them reports."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.photos import photo, unlike_any
from tests.processes import Gateway

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
    """Two ready Triton servers for this test alone."""
    tritons = [start_triton(), start_triton()]
    for triton in tritons:
        triton.wait_ready()
    return tritons


def urls_of(tritons: list[EmbeddedTriton]) -> str:
    """The setting for these Triton servers."""
    return ",".join(triton.url for triton in tritons)


def health(gateway: Gateway) -> httpx.Response:
    """The gateway's report of its health and its Triton servers."""
    return httpx.get(f"{gateway.url}/health/ready", timeout=60)


def ready(gateway: Gateway) -> bool:
    return health(gateway).status_code == 200


def endpoints(gateway: Gateway) -> list[dict[str, Any]]:
    """The gateway's report of each Triton server."""
    return health(gateway).json()["endpoints"]


def all_ready(gateway: Gateway) -> bool:
    return all(endpoint["ready"] for endpoint in endpoints(gateway))


def classify(gateway: Gateway, *images: bytes, **params: object) -> httpx.Response:
    """The answer to images, by default to one that no cache has."""
    files = [("f", (f"{index}.jpg", image)) for index, image in enumerate(images or [unlike_any(photo("cat"))])]
    return httpx.post(f"{gateway.url}/predict", files=files, params={"timeout": 60, **params}, timeout=120)


def outcomes(answer: httpx.Response) -> list[str]:
    """The code of each image's error, or `ok`."""
    return [result["error"]["code"] if result["error"] else "ok" for result in answer.json()["results"]]
