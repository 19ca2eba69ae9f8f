"""Clients of WS /stream."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

TIMEOUT_SECONDS = 120


@contextmanager
def opened(service: str, query: str = "", **options: Any) -> Iterator[ClientConnection]:
    """An open stream of a service, by its URL or as host:port."""
    url = f"ws://{service.removeprefix('http://')}/stream{query}"
    with connect(url, proxy=None, compression=None, open_timeout=TIMEOUT_SECONDS, **options) as client:
        yield client


def answer(client: ClientConnection) -> Any:
    """The next message."""
    return json.loads(client.recv(TIMEOUT_SECONDS))


def ask(client: ClientConnection, message: bytes | str) -> Any:
    """The message that follows when this one is sent."""
    client.send(message)
    return answer(client)
