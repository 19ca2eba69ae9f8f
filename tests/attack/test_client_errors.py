"""Requests, handshakes and messages that are errors of their client are answered as such, and log no fault."""

import itertools
import json
from collections.abc import Iterator

import pytest

from bench.attack.parsers import DELIMITER, END, INFER, JSON, SMALL_BMP
from bench.attack.target import MULTIPART, Target, receive, summary
from bench.attack.websocket import BINARY, NO_CODE, TEXT, Stream, handshake
from tests.processes import Gateway

pytestmark = pytest.mark.slow

MESSAGE_SECONDS = 3.0
CODES_OF_FAULTS = {1006, 1011, 4500, 4502, 4504}
"""Close codes for faults of the gateway or of Triton."""
SURROGATES = (r"\ud800", r"\udfff", r"\udc00\ud800", r"a\ud83d", r"\ud800\ud800", r"\uDBFF\u0041")
"""JSON escapes that stand for no character (RFC 8259, section 8.2)."""
TIMEOUTS = (
    "5e-324",
    "1e-300",
    "1e-9",
    "0.0000001",
    "0.0009",
    "0",
    "-0",
    "-1",
    "1e-400",
    "inf",
    "nan",
    "0x1",
    "1_0",
    "",
)
ORIGINS = (
    "http://[::1",
    "http://[",
    "http://]",
    "http://[v1.x]",
    "http://[::ffff:999.1.1.1]",
    "http://x:99999999",
    "http://x:port",
    "http://\u2100.x",
    "http://\xff",
    "null",
    "",
    "//",
    "http://" + "x" * 5_000,
    "http://x, http://y",
    "http://user@x",
    "javascript:0",
)


@pytest.fixture
def target(gateway: Gateway) -> Iterator[Target]:
    offset = gateway.log.stat().st_size
    yield Target("127.0.0.1", gateway.port)
    assert gateway.faults(offset) == []


def test_origins_that_are_none(target: Target):
    """Handshakes with origins that are not URLs, or not those of the service."""
    handshakes(target, [("/stream", f"Origin: {origin}") for origin in ORIGINS])


def test_hosts_that_are_none(target: Target):
    """Handshakes from a page, with invalid hosts."""
    hosts = ("[", "[::1", "x:99999", "\xff", "", "x y", "x" * 5_000)
    heads = [
        handshake(target, "/stream", "Origin: http://x").replace(b"Host: x", f"Host: {host}".encode("latin-1"))
        for host in hosts
    ]
    answered(target, heads)


def test_parameters_of_a_handshake(target: Target):
    wrong = ("\\ud800", "%ED%A0%80", "%00", "%FF", "nan", "1e999", "-1", "9" * 5_000, "[]", "", "a" * 7_000)
    names = ("model", "version", "top_k", "threshold", "labels", "smoothing", "alpha", "window", "enter", "drop", "%FF")
    queries = [f"/stream?{name}={value}" for name, value in itertools.product(names, wrong)]
    handshakes(target, [(query, "A: b") for query in queries])


def test_subprotocols_of_a_handshake(target: Target):
    """Handshakes with invalid subprotocols, extensions, keys and versions."""
    fields = (
        "Sec-WebSocket-Protocol: ,",
        "Sec-WebSocket-Protocol: a b",
        "Sec-WebSocket-Protocol: gateway-key.\xff",
        "Sec-WebSocket-Protocol: gateway-key.",
        "Sec-WebSocket-Protocol: " + ",".join(f"p{number}" for number in range(1_000)),
        "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=1",
        "Sec-WebSocket-Extensions: ;;;",
        "Sec-WebSocket-Extensions: permessage-deflate; a=\xff",
        "Sec-WebSocket-Key: x",
        "Sec-WebSocket-Version: 13, 12",
        "Sec-WebSocket-Version: \xb2",
        "Authorization: Bearer \xff",
        "X-Request-ID: \xff\xfe",
        "traceparent: 00-zz",
        "Cookie: " + "a" * 7_000,
    )
    handshakes(target, [("/stream", field) for field in fields])


def test_surrogates_in_a_stream(target: Target):
    """Texts of a stream with escapes that stand for no character, each on a separate stream."""
    texts = [f'{{"{name}": ["{text}"]}}' for name in ("labels", "model", "smoothing") for text in SURROGATES]
    texts += [f'{{"{text}": 1}}' for text in SURROGATES]
    send_texts(target, [text.encode() for text in texts])


def test_texts_of_a_stream(target: Target):
    """Texts of a stream that are not JSON, not objects, or not UTF-8."""
    send_texts(
        target,
        [
            b"\xed\xa0\x80",
            b"\xff\xfe{\0}\0",
            b"\xef\xbb\xbf{}",
            b"",
            b"\0",
            b"null",
            b"[]",
            b"1" * 5_000,
            b"-",
            b"{" * 5_000,
            b"[" * 30_000,
            b'{"top_k": ' + b"9" * 5_000 + b"}",
            b'{"top_k": 1e999}',
            b'{"alpha": NaN}',
            b'{"alpha": 5e-324}',
            b'{"enter": -0.0, "leave": Infinity}',
            b'{"timeout": 5e-324}',
            b'{"timeout": ' + b"1" * 4_400 + b"}",
            b'{"window": 1.5}',
            b'{"window": true}',
            b'{"labels": "' + b"x" * 30_000 + b'"}',
            b'{"labels": {"a": "b"}}',
            b'{"labels": [null, [], 1e5]}',
            b'{"end": "\\ud800"}',
            b'{"end": [[[]]]}',
            b'{"end": true, "end": false}',
            b'{"top_k": 1, "top_k": 2}',
            b'{"model": "x"}',
            b'{"drop": "never", "smoothing": "none"}',
            b'{"__class__": 1, "\\u0000": 2}',
        ],
    )


def test_timeouts_of_almost_nothing(target: Target):
    """Requests with timeouts that are invalid, or too short for any answer."""
    answers = {target.post(f"/predict?timeout={value}", SMALL_BMP, "image/bmp") for value in TIMEOUTS}
    answers |= {target.post(f"/embed?timeout={value}", SMALL_BMP, "image/bmp") for value in TIMEOUTS}
    for value in (0, 1, -1, 999, 1e-9, 5e-324, 2**63, 2**64, "1", "x", None, True, [1], 0.5):
        body = {
            "parameters": {"timeout": value},
            "inputs": [{"name": "RAW_IMAGE", "shape": [1], "datatype": "BYTES", "data": ["QQ=="]}],
        }
        answers.add(target.post(INFER, json.dumps(body).encode(), JSON))
    check_answers(answers)


def test_numbers_beyond_all_bounds(target: Target):
    """Timeouts, counts and thresholds of 10^400, infinity and NaN."""
    huge = b"1" + b"0" * 400
    answers = {target.post(INFER, b'{"parameters": {"timeout": %b}, "inputs": []}' % huge, JSON)}
    for name, value in itertools.product(("timeout", "top_k", "threshold"), ("1e999", "nan", "-inf", huge.decode())):
        answers.add(target.post(f"/predict?{name}={value}", b"x", "image/jpeg"))
    assert {answer[:3] for answer in answers} == {"422"}


def test_file_names_in_a_charset_that_fails(target: Target):
    part = b"Content-Disposition: form-data; name=\"f\"; filename*=undefined''x\r\n\r\nx\r\n"
    body = DELIMITER + part + END[2:]
    assert target.post("/predict", body, MULTIPART) == "415 unsupported_format"


def test_timeouts_of_streams(target: Target):
    """The same timeouts for streams, with a frame each."""
    streams = []
    for value in TIMEOUTS:
        with Stream(target, f"/stream?timeout={value}") as stream:
            stream.send(BINARY, SMALL_BMP)
            stream.wait(MESSAGE_SECONDS, messages=1)
            assert b"deadline" not in stream.last, value
            assert b"504" not in stream.last, value
            streams.append(stream)
    check_streams(streams)


def test_frames_of_a_websocket(target: Target):
    """Frames that RFC 6455 forbids, each on a separate stream."""
    broken = (
        b"\x82\x01x",  # without a mask
        b"\xc2\x81\0\0\0\0x",  # a reserved bit
        b"\x83\x81\0\0\0\0x",  # an unknown kind
        b"\x80\x81\0\0\0\0x",  # a part of no message
        b"\x02\x81\0\0\0\0x\x82\x81\0\0\0\0x",  # a message within another
        b"\x89\xfe\0\x7e\0\0\0\0" + bytes(126),  # a ping that is too long
        b"\x09\x80\0\0\0\0",  # a ping in parts
        b"\x88\x81\0\0\0\0x",  # a close of one byte
        b"\x88\x82\0\0\0\0\0\0",  # a close with code 0
        b"\x88\x84\0\0\0\0\x03\xe8\xff\xff",  # a reason that is not UTF-8
        b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0",  # of 2^64 bytes
        b"\x82\xff\0\0\0\0\0\0\0\x01\0\0\0\0x",  # a length longer than it has to be
        b"\x81\x82\0\0\0\0\xc3\x28",  # a text that is not UTF-8
        b"GET / HTTP/1.1\r\n\r\n",
    )
    streams = []
    for data in broken:
        with Stream(target) as stream:
            stream.send_raw(data)
            stream.wait(MESSAGE_SECONDS)
            streams.append(stream)
    check_streams(streams)


def send_texts(target: Target, texts: list[bytes]) -> None:
    """Send each text on a stream of its own, and a frame behind it."""
    streams = []
    for text in texts:
        with Stream(target) as stream:
            stream.send(TEXT, text)
            stream.send(BINARY, SMALL_BMP)
            stream.wait(MESSAGE_SECONDS, messages=2)
            streams.append(stream)
    check_streams(streams)


def handshakes(target: Target, requests: list[tuple[str, str]]) -> None:
    answered(target, [latin(target, path, field) for path, field in requests])


def latin(target: Target, path: str, field: str) -> bytes:
    return handshake(target, path).replace(b"Host: x\r\n", b"Host: x\r\n" + field.encode("utf-8", "replace") + b"\r\n")


def answered(target: Target, heads: list[bytes]) -> None:
    """Send each request on a separate connection: no 5xx status, and an answer."""
    for head in heads:
        with target.connect() as connection:
            connection.settimeout(MESSAGE_SECONDS)
            connection.sendall(head)
            answer = summary(receive(connection, MESSAGE_SECONDS))
            assert answer != "closed", head[:300]
            assert not answer.startswith("5"), (answer, head[:300])


def check_streams(streams: list[Stream]) -> None:
    """None ended by a fault of the service, or without a code."""
    for number, stream in enumerate(streams):
        gone = stream.ended and stream.status == 101 and stream.close_code in (0, NO_CODE)
        assert stream.close_code not in CODES_OF_FAULTS, (number, str(stream))
        assert stream.status < 500, (number, str(stream))
        assert not gone, (number, str(stream))


def check_answers(answers: set[str]) -> None:
    """None reports a fault of the service."""
    assert not [answer for answer in answers if answer.startswith("5") or "deadline" in answer]
