"""A body that nobody reads: the answer reaches its client, and the connection does not carry the rest."""

import asyncio
from collections.abc import Iterator

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.server import unread
from gateway.server.unread import DRAIN_BYTES, SMALL_BYTES, UnreadBody

CLOSE = (b"connection", b"close")
LARGE = [(b"content-length", str(SMALL_BYTES + 1).encode())]


class Client:
    """Sends what it has, and is silent then."""

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


def test_a_fault_before_the_end_of_a_large_body_is_sent_at_once_and_closes_the_connection():
    client = Client(iter([bytes(1000)] * 3))
    start, body, end = serve(client, answering(413))
    assert CLOSE in start["headers"]
    assert (body["body"], body["more_body"], end.get("more_body", False)) == (b"answer", True, False)
    assert client.taken == 3_000, "the client has sent its last byte before the end"


def test_of_a_body_without_an_end_no_more_is_taken_than_the_limit():
    client = Client(iter(lambda: bytes(2**20), None))
    serve(client, answering(413))
    assert DRAIN_BYTES <= client.taken <= DRAIN_BYTES + 2**20


def test_a_client_that_stalls_is_waited_for_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unread, "DRAIN_SECONDS", 0.05)
    client = Client(iter([b"x"]), ends=False)
    assert serve(client, answering(413))[-1] == {"type": "http.response.body"}


def test_results_that_stream_while_the_body_arrives_do_not_close_the_connection():
    start, *_ = serve(Client(iter([b"x"])), answering(200))
    assert CLOSE not in start["headers"]


@pytest.mark.parametrize("status", [200, 413])
def test_after_a_body_that_was_read_to_its_end_nothing_is_changed(status):
    start, body = serve(Client(iter([b"x"])), answering(status, reads=True))
    assert (start["headers"], "more_body" in body) == ([], False)


def test_a_small_body_is_left_to_the_server():
    client = Client(iter([b"x"]))
    serve(client, answering(413), [(b"content-length", str(SMALL_BYTES).encode())])
    assert client.taken == 0
