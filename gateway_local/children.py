"""Servers that run as child processes: requests over HTTP, and waiting until they are ready."""

import http.client
import time
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus

from gateway.errors import UserError
from gateway.server.workers import START_SECONDS, Workers

POLL_SECONDS = 0.02
MAX_RESPONSE_BYTES = 10_000


class Waited(Enum):
    """How a wait for a server ended."""

    READY = "ready"
    ENDED = "ended"
    LATE = "late"


def wait_ready(ready: Callable[[], bool], alive: Callable[[], bool], timeout_seconds: float) -> Waited:
    """Poll until a server is `ready`, is no longer `alive`, or the time is up; a slow `ready` may exceed the time."""
    deadline = time.monotonic() + timeout_seconds
    # Alive first: after the server has ended, another one may have its port.
    while alive():
        if ready():
            return Waited.READY
        if time.monotonic() > deadline:
            return Waited.LATE
        time.sleep(POLL_SECONDS)
    return Waited.ENDED


class ApiFailed(UserError):
    """The API ended while it started, was not ready in time, or keeps ending; the message has the reason."""


def wait_for_api(workers: Workers, timeout_seconds: float = START_SECONDS) -> None:
    """Wait until each worker has classified an image; raises ApiFailed if one ends before, or the time is up."""

    def alive() -> bool:
        workers.check()
        return workers.failure is None

    match wait_ready(lambda: workers.ready, alive, timeout_seconds):
        case Waited.ENDED:
            raise ApiFailed(f"the API ended with code {workers.failure} while it started; its log above says why")
        case Waited.LATE:
            raise ApiFailed(f"the API was not ready after {timeout_seconds:g} s; its log above may say why")


def get(host: str, port: int, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
    """The status and the first MAX_RESPONSE_BYTES of the response to a GET request.

    Raises OSError if there is no response in HTTP, and TimeoutError if it takes too long.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(MAX_RESPONSE_BYTES)
    except http.client.HTTPException as exc:
        raise OSError(f"the answer is not HTTP: {exc!r}") from exc
    finally:
        connection.close()


def is_ok(host: str, port: int, path: str, *, timeout_seconds: float) -> bool:
    """Whether the response to a GET request is 200."""
    try:
        return get(host, port, path, timeout_seconds=timeout_seconds)[0] == HTTPStatus.OK
    except OSError:
        return False
