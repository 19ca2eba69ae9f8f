"""`gateway stream` with a server that is not a gateway: one error message, and no endless wait."""

import json
import threading
from contextlib import contextmanager, suppress

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from gateway_local.commands import follow
from gateway_local.commands.capture import VideoFrame
from gateway_local.commands.follow import MAX_MESSAGE_BYTES, StreamRefused
from tests.doubles.origin import origin_on

PREDICTIONS = [{"label": "cat", "class_id": 0, "score": 0.5}]
ANSWER = {"type": "frame", "frame": 0, "predictions": PREDICTIONS, "sequence": None, "error": None, "dropped": 0}

FRAME = [VideoFrame(0.0, b"jpeg")]


@contextmanager
def server(talk):
    """Its URL; `talk` has each connection once a frame was received."""

    def handle(connection):
        with suppress(ConnectionClosed):
            connection.recv()
            talk(connection)

    with serve(handle, "127.0.0.1", 0, compression=None) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.socket.getsockname()[1]}"
        finally:
            running.shutdown()
            thread.join()


def answers_of(talk, frames=1):
    with server(talk) as url:
        return list(follow.follow(url, [VideoFrame(number / 10, b"jpeg") for number in range(frames)], {}))


def refusal(*messages):
    def talk(connection):
        for message in messages:
            connection.send(message if isinstance(message, str | bytes) else json.dumps(message))

    with pytest.raises(StreamRefused) as refused:
        answers_of(talk)
    return str(refused.value)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xfe",
        "[" * 100_000,
        "{}",
        {"type": "error", "error": 7},
        {**ANSWER, "frame": 1},
        {**ANSWER, "frame": 10**400},
        {**ANSWER, "error": {"code": None}},
    ],
    ids=range(7),
)
def test_message_of_another_shape_ends_the_stream(message):
    assert "does not answer like a gateway" in refusal(message)


def test_message_size_is_limited():
    at_limit = json.dumps(ANSWER).ljust(MAX_MESSAGE_BYTES)
    assert "(1009)" in refusal(at_limit + " ")
    assert "frame 0" in refusal(at_limit, ANSWER)


def test_messages_without_answers_have_a_deadline(monkeypatch):
    monkeypatch.setattr(follow, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(follow, "CLOSE_SECONDS", 0.1)

    def talk(connection):
        while True:
            connection.send(json.dumps({"type": "error", "error": {"code": "c", "message": "m"}}))

    with pytest.raises(StreamRefused, match=r"no answer came within 0\.2 s"):
        answers_of(talk)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cannot be reached"),
        (b"HTTP/1.1 302 Found\r\nLocation: ws://other/\r\nContent-Length: 0\r\n\r\n", "cannot follow redirect"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 13\r\n\r\n" + b'{"detail": 7}', "it answers 403"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 15\r\n\r\n" + b'{"detail": "x"}', "refuses the stream: x"),
    ],
)
def test_other_protocols_are_reported(response, words):
    with origin_on() as origin:
        origin.answers["/stream"] = response
        with pytest.raises(StreamRefused, match=words):
            list(follow.follow(origin.url(""), FRAME, {}))
