"""A body that the application does not read: the response arrives, and the connection is closed."""

import asyncio
from collections.abc import Iterator

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.server import unread
from gateway.server.unread import DRAIN_BYTES, SMALL_BYTES, UnreadBody

CLOSE = (b"connection", b"close")
LARGE = [(b"content-length", str(SMALL_BYTES + 1).encode())]


class Client:
    """Sends its chunks, then nothing."""

    def __init__(self, chunks: Iterator[bytes], *, ends: bool = True) -> None:
        self._chunks = chunks
        self._ends = ends
        self.taken = 0
        self.received: list[Message] = []

    async def receive(self) -> Message:
        chunk = next(self._chunks, None)
        if chunk is None:
            if not self._ends:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": b"", "more_body": False}
        self.taken += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(self, message: Message) -> None:
        self.received.append(message)


def answering(status: int, *, reads: bool = False):
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        while reads and (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"answer"})

    return application


def serve(client: Client, application, headers: list[tuple[bytes, bytes]] = LARGE) -> list[Message]:
    scope = {"type": "http", "headers": headers}
    asyncio.run(UnreadBody(application)(scope, client.receive, client.send))
    return client.received


def test_error_amid_a_large_body_is_sent_at_once_and_closes():
    client = Client(iter([bytes(1000)] * 3))
    start, body, end = serve(client, answering(413))
    assert CLOSE in start["headers"]
    assert (body["body"], body["more_body"], end.get("more_body", False)) == (b"answer", True, False)
    assert client.taken == 3_000, "the client has sent its last byte before the end"


def test_endless_body_is_drained_up_to_the_limit():
    client = Client(iter(lambda: bytes(2**20), None))
    serve(client, answering(413))
    assert DRAIN_BYTES <= client.taken <= DRAIN_BYTES + 2**20


def test_stalled_client_is_drained_for_a_limited_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unread, "DRAIN_SECONDS", 0.05)
    client = Client(iter([b"x"]), ends=False)
    assert serve(client, answering(413))[-1] == {"type": "http.response.body"}


def test_streamed_results_do_not_close_the_connection():
    start, *_ = serve(Client(iter([b"x"])), answering(200))
    assert CLOSE not in start["headers"]


@pytest.mark.parametrize("status", [200, 413])
def test_fully_read_body_keeps_the_connection_open(status):
    start, body = serve(Client(iter([b"x"])), answering(status, reads=True))
    assert (start["headers"], "more_body" in body) == ([], False)


def test_small_body_is_left_to_the_server():
    client = Client(iter([b"x"]))
    serve(client, answering(413), [(b"content-length", str(SMALL_BYTES).encode())])
    assert client.taken == 0
