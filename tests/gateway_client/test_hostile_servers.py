"""Hostile servers, over real sockets: the client ends in time with a documented error."""

import gzip
import json
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway_client import Gateway, GatewayError, ServiceError, documents
from tests.doubles.origin import Answer, drip, origin_on, repeat

LINE = {"index": 0, "width": 1, "height": 1, "predictions": [], "error": None, "model": {"name": "m", "version": "1"}}
NDJSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
GONE = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n" + b'{"code":"not_found","detail":"None"}'


@contextmanager
def server(answer: Answer, *, limits: bytes = GONE) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each request in this way, except for `/limits`, and the heads of its requests."""

    def serve(connection: socket.socket) -> None:
        if callable(answer):
            answer(connection)
        else:
            connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):  # an unread body would end the connection before the client has the answer
            pass

    with origin_on() as origin:
        origin.answers |= {"/predict": serve, "/models": serve, "/limits": limits}
        yield origin.url(""), origin.heads


def classify(url, **options):
    """Classify one image; return its result, or the error of the call."""
    began = time.monotonic()
    with Gateway(url, "secret-key", timeout_seconds=1.0, retry_seconds=0.3, **options) as gateway:
        try:
            (result,) = gateway.classify([b"image"])
        except GatewayError as exc:
            result = exc
    assert time.monotonic() - began < 20
    return result


def line(**changes):
    return NDJSON + b"\r\n" + json.dumps(LINE | changes).encode() + b"\n"


PREDICTION = {"label": "a", "class_id": 0, "score": 0.5}


@pytest.mark.parametrize(
    "answer",
    [
        line(error=7),
        line(error={"code": "\x1b[2J", "message": "a"}),
        line(predictions=[{}]),
        line(predictions=[PREDICTION | {"score": None}]),
        line(predictions=[PREDICTION | {"class_id": float("inf")}]),
        line(predictions=[PREDICTION | {"score": 10**400}]),
        line(error={"code": "a", "message": "a", "status": float("inf")}),
        line(embedding="?"),
        NDJSON + b'\r\n{"index":0}\n',
        NDJSON + b'\r\n{"index":0,"width":NaN}\n',
        NDJSON + b"\r\n" + b"[" * 100_000 + b"\n",
        NDJSON + b"\r\n" + b'{"index":' + b"9" * 5000 + b"}\n",
        NDJSON + b"\r\n\xff\n",
        NDJSON + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(bytes(10**7), mtime=0),
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<html>",
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n" + b"[" * 100_000,
    ],
    ids=lambda answer: f"{zlib.crc32(answer):08x}",
)
def test_invalid_responses_are_unexpected_answers(answer):
    with server(answer) as (url, _):
        found = classify(url)
    assert (type(found), found.code) == (ServiceError, "unexpected_answer"), found
    assert str(found).isprintable()


@pytest.mark.parametrize(
    "answer",
    [
        drip(b"HTTP/1.1 200"),
        drip(NDJSON + b"Content-Length: 1000000\r\n\r\n"),
        repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, b""),
        repeat(b"X-A: " + b"x" * 9000 + b"\r\n", b"HTTP/1.1 200 OK\r\n"),
        NDJSON + b"Content-Length: 1000\r\n\r\n{",
        b"",
        line(index=1),
    ],
)
def test_missing_responses_raise_connection_lost(answer):
    with server(answer) as (url, _):
        found = classify(url)
    error = found if isinstance(found, GatewayError) else found.error
    assert error is not None
    assert error.code in {"connection_lost", "unreachable", "unexpected_answer"}


def test_response_line_and_document_sizes_are_limited(monkeypatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 100_000)
    piece, unasked = b"x" * 65_536, line(index=9)[len(NDJSON) + 2 :]
    for answer, words in (
        (repeat(piece, NDJSON + b"\r\n"), "a line of more than"),
        (repeat(piece, b"HTTP/1.1 500 Oops\r\n\r\n"), "sends more than 1 MiB"),
        (repeat(unasked, NDJSON + b"\r\n"), "more results than images"),
    ):
        with server(answer) as (url, _):
            assert words in str(classify(url))


def test_redirect_is_not_followed_and_key_is_not_leaked():
    with server(line()) as (other, elsewhere):
        redirect = f"HTTP/1.1 307 Go\r\nLocation: {other}/predict\r\nContent-Length: 0\r\n\r\n".encode()
        with server(redirect) as (url, requests):
            found = classify(url)
        assert f"redirects to {other}/predict" in str(found)
        assert any(b"secret-key" in request for request in requests)
        assert not elsewhere
        with server(redirect, limits=redirect) as (url, _):
            assert classify(url).code == "unexpected_answer"
        assert not elsewhere


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ("9" * 400, 86_400),
        ("nan", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", None),
    ],
)
def test_retry_after_is_bounded(given, most):
    body = b'{"code":"overloaded","detail":"Full."}'
    head = f"HTTP/1.1 503 Full\r\nRetry-After: {given}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with server(head.encode() + body) as (url, _):
        error = classify(url).error
    assert error.code == "overloaded"
    assert error.retry_after_seconds == most


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (b'\r\n{"limits":7}', "unexpected_answer"),
        (b'\r\n{"limits":[{"name":"max_files","value":"x"}]}', "unexpected_answer"),
        (b'\r\n{"limits":[{"name":"max_files","value":Infinity}]}', "unexpected_answer"),
        (b"\r\n<html>", "unexpected_answer"),
        (b"Content-Length: 10\r\n\r\n", "unreachable"),
    ],
)
def test_invalid_or_missing_limits_are_errors(limits, code):
    with server(line(), limits=JSON + limits) as (url, _):
        assert classify(url).code == code


def test_excessive_limits_are_capped():
    limits = json.dumps({"limits": [{"name": "max_file_bytes", "value": 2**60}, {"name": "max_files", "value": 0}]})
    with server(line(), limits=JSON + b"\r\n" + limits.encode()) as (url, _), Gateway(url) as gateway:
        assert (gateway.limits().max_file_bytes, gateway.limits().max_files) == (2**30, 1)


def test_invalid_models_are_unexpected_answers():
    answer = JSON + b'\r\n{"models":[{"name":"a"}]}'
    refused = pytest.raises(ServiceError, match="is not a gateway's response")
    with server(answer) as (url, _), Gateway(url) as gateway, refused:
        gateway.models()


def test_cookies_are_not_kept():
    cookie = b"200 OK\r\nSet-Cookie: a=b\r\n"
    with server(line().replace(b"200 OK\r\n", cookie)) as (url, requests), Gateway(url) as gateway:
        list(gateway.classify([b"a"]))
        list(gateway.classify([b"a"]))
    assert len(requests) == 3
    assert not any(b"cookie" in request.lower() for request in requests)
