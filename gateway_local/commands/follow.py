"""Sends a video over a stream of a running service, and yields results."""

import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from gateway.errors import UserError
from gateway_client.documents import Malformed, parsed, reading
from gateway_local.commands.capture import VideoFrame

OPEN_SECONDS = 30.0
CLOSE_SECONDS = 5.0
ANSWER_SECONDS = 120.0
"""Maximum time without the result of a frame, even if the service sends other messages."""
MAX_MESSAGE_BYTES = 2**20
"""Maximum bytes of one message of the service."""
MAX_FAULT_CHARACTERS = 500
NORMAL = 1000
Row = dict[str, Any]
"""The result of one frame; `label` and `score` are the sequence's if the stream has one."""


class StreamRefused(UserError):
    """The service refused the stream or ended it; the message has the reason."""


def follow(
    url: str, frames: Iterable[VideoFrame], parameters: Mapping[str, object], api_key: str | None = None
) -> Iterator[Row]:
    """Send frames and yield their results in order; raises StreamRefused, and errors of reading the frames."""
    query = urlencode([(name, value) for name, value in parameters.items() if value is not None])
    address = f"{url.rstrip('/').replace('http', 'ws', 1)}/stream?{query}"
    headers = {"X-API-Key": api_key} if api_key else {}
    with ExitStack() as stack:
        try:
            # With an open socket, no redirect is followed: the key must not reach another server.
            connection = stack.enter_context(_connected(address))
            stream = stack.enter_context(
                connect(
                    address,
                    sock=connection,
                    additional_headers=headers,
                    compression=None,
                    open_timeout=OPEN_SECONDS,
                    close_timeout=CLOSE_SECONDS,
                    max_size=MAX_MESSAGE_BYTES,
                    proxy=None,
                )
            )
        except InvalidStatus as exc:
            raise StreamRefused(f"{url} refuses the stream: {_reason(exc)}") from exc
        except (OSError, WebSocketException, ValueError) as exc:
            raise StreamRefused(f"{url} cannot be reached: {exc}; start the service with `gateway up`") from exc
        yield from _through(stream, frames)


def _connected(address: str) -> socket.socket:
    """Connect to a URL's host; raises OSError and ValueError."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    return socket.create_connection((parts.hostname, port), timeout=OPEN_SECONDS)


def _through(stream: ClientConnection, frames: Iterable[VideoFrame]) -> Iterator[Row]:
    """Send in a thread, and yield the results."""
    sent: deque[tuple[int, float]] = deque()
    failures: list[Exception] = []

    def send() -> None:
        try:
            with suppress(ConnectionClosed):  # the reader of the results reports the reason
                for number_sent, frame in enumerate(frames):
                    sent.append((number_sent, frame.seconds))
                    stream.send(frame.jpeg)
                stream.send('{"end": true}')
        except Exception as exc:  # the reader raises it again
            failures.append(exc)
            stream.close()

    threading.Thread(target=send, name="frames", daemon=True).start()
    try:
        yield from _answers(stream, sent)
    except StreamRefused:
        if not failures:
            raise
    if failures:
        raise failures[0]


def _answers(stream: ClientConnection, sent: deque[tuple[int, float]]) -> Iterator[Row]:
    """Yield results with the times of their frames, in the order in which the frames were `sent`."""
    fault = ""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            message = parsed(stream.recv(max(0, deadline - time.monotonic())))
            with reading():
                if message["type"] == "error":
                    fault = message["error"]["message"][:MAX_FAULT_CHARACTERS]
                answer = _answer(message, sent) if message["type"] == "frame" else None
            if answer is not None:
                yield answer
                deadline = time.monotonic() + ANSWER_SECONDS
        except TimeoutError:
            raise StreamRefused(f"no answer came within {ANSWER_SECONDS:g} s") from None
        except Malformed as exc:
            raise StreamRefused(f"the service does not answer like a gateway: {exc}; is the URL right?") from exc
        except ConnectionClosed as exc:
            if exc.rcvd is not None and exc.rcvd.code == NORMAL:
                return
            raise StreamRefused(f"the service has ended the stream: {fault or _reason_of(exc)}") from exc


def _answer(message: dict[str, Any], sent: deque[tuple[int, float]]) -> Row:
    number = message["frame"]
    while sent and sent[0][0] < number:  # the service dropped them
        sent.popleft()
    if not sent or sent[0][0] != number:
        raise Malformed(f"it has a result for frame {number}, which was not sent or has an answer")
    _, seconds = sent.popleft()
    frame_label, frame_score = _best(message)
    label, score = _best(message["sequence"]) if message["sequence"] else (frame_label, frame_score)
    error = message["error"]["code"][:MAX_FAULT_CHARACTERS] if message["error"] else ""
    return {
        "frame": number,
        "seconds": seconds,
        "status": "error" if error else "ok",
        "label": label,
        "score": score,
        "frame_label": frame_label,
        "frame_score": frame_score,
        "dropped": message["dropped"],
        "error": error,
    }


def _best(answer: dict[str, Any]) -> tuple[str, float]:
    best: dict[str, Any] = answer["predictions"][0] if answer["predictions"] else {"label": "", "score": 0.0}
    return str(best["label"]), float(best["score"])


def _reason_of(closed: ConnectionClosed) -> str:
    """The reason why either side closed a connection."""
    for close in (closed.rcvd, closed.sent):
        if close is not None:
            return f"{close.reason or 'no reason'} ({close.code})"
    return "the connection was lost"


def _reason(exc: InvalidStatus) -> str:
    with suppress(Malformed), reading():
        return str(parsed(bytes(exc.response.body or b""))["detail"][:MAX_FAULT_CHARACTERS])
    return f"it answers {exc.response.status_code}"
