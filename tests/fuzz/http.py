"""Damaged requests and streams over raw sockets.

The gateway runs alone in a separate process; see tests.fuzz.service for what is a fault.
"""

import contextlib
import json
import random
import re
import socket
import struct
from base64 import b64encode
from collections.abc import Iterator

from bench.http_load import form
from gateway.plugins.streams.options import StreamParameters
from tests.attack.target import MULTIPART, chunked, is_whole
from tests.attack.websocket import BINARY, CLOSE, CONTINUATION, GOOD, KEY, PING, TEXT, handshake, message
from tests.doubles.backend import PNG
from tests.fuzz.mutations import mutate
from tests.fuzz.service import BATCH, SECONDS_TO_END, Case, Report, Server, run_cases
from tests.gateway.api.tensors import INFER

JSON = "application/json"
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LARGEST_BYTES = 2_000_000
FAULTS = {1011, 4500, 4502, 4504}
"""Close codes for faults of the gateway or of Triton."""
RESET = struct.pack("ii", 1, 0)


def exchange(server: Server, case: Case) -> str:
    """Send a case and wait for its end; says how it was answered or closed, `fault: …` where it must not be."""
    received = bytearray()
    first, *rest = case.pieces
    try:
        with server.connect() as connection:
            with contextlib.suppress(ConnectionError):  # refused before all was sent
                connection.sendall(first)
                while case.waits and b"\r\n\r\n" not in received and (part := connection.recv(65_536)):
                    received += part
                for piece in rest:
                    connection.sendall(piece)
            if case.reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                return "reset"
            with contextlib.suppress(ConnectionError):
                while not _outcome(bytes(received)) and (part := connection.recv(65_536)):
                    received += part
    except TimeoutError:
        return f"fault: neither answered nor closed within {SECONDS_TO_END:.0f} s: {bytes(received[:60])!r}"
    return _outcome(bytes(received)) or "closed"


def _outcome(received: bytes) -> str:
    """The response in short; "" while it is incomplete."""
    if received and not b"HTTP/1.1 ".startswith(received[:9]):
        return f"fault: no HTTP: {received[:40]!r}"
    if not is_whole(received):
        return ""
    status = received[9:12].decode("latin-1")
    if status == "101":
        return _end_of(received.partition(b"\r\n\r\n")[2])
    return f"fault: {status}" if status == "500" else status


def _end_of(received: bytes) -> str:
    """The close code of a stream, "" before it; `fault: …` where a message is none of RFC 6455, or not JSON."""
    place = 0
    while place + 2 <= len(received):
        first, length = received[place], received[place + 1]
        place += 2
        if length > 127 or first & 0x70:
            return f"fault: no frame: {received[place - 2 : place + 40]!r}"
        if length >= 126:
            size = 2 if length == 126 else 8
            length = int.from_bytes(received[place : place + size], "big")
            place += size
        payload = received[place : place + length]
        place += length
        if place > len(received):
            return ""
        if first & 0x0F == TEXT:
            try:
                json.loads(payload)
            except ValueError:
                return f"fault: no JSON: {payload[:80]!r}"
        if first & 0x0F == CLOSE:
            code = struct.unpack("!H", payload[:2])[0] if payload else 1005
            return f"fault: close code {code}" if code in {*FAULTS, 1005} else f"close code {code}"
    return ""


def _post(path: str, content_type: str, body: str | bytes, *headers: str) -> bytes:
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {content_type}", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "\r\n"]).encode("latin-1") + data


IMAGE = b64encode(PNG).decode()
REQUESTS = [
    HEAD + b"Content-Length: 4\r\n\r\nabcd",
    CHUNKED + b"".join(chunked([b"ab", b"cd"])),
    CHUNKED + b"4;a=b\r\nabcd\r\n0\r\nA: b\r\n\r\n",
    b"GET /health/live?a=b HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n" * 2,
    _post("/predict?top_k=2", MULTIPART, b"".join(form([PNG, b"x"]))),
    _post("/predict", JSON, '{"images": [{"b64": "QUJD", "filename": "a\\u0041.jpg"}, {"b64": ""}]}'),
    _post("/predict", JSON, f'{{"inputs": "{IMAGE}", "parameters": {{"top_k": 1}}}}'),
    _post("/embed?encoding_format=base64", JSON, f'{{"images": [{{"b64": "{IMAGE}"}}]}}'),
    _post("/explain?masks=9&class_id=0", "image/png", "x"),
    _post("/predict?timeout=1.5&labels=a&labels=b&threshold=0.1&frames=2&version=1&model=m", "image/png", "x"),
    _post(
        "/predict",
        "application/json; charset=utf-8",
        f'{{"images": [{{"b64": "{IMAGE}", "filename": "\\ud800.png"}}]}}',
        *("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate: a=b"),
        *("Authorization: Bearer k\xff", "X-API-Key: k", "X-Request-ID: r", "X-Client-ID: c", "Origin: http://[::1"),
    ),
    _post(
        INFER,
        JSON,
        '{"parameters": {"timeout": 1000000}, "inputs": [{"name": "IMAGE", "shape": [1, 1], "datatype": "BYTES", '
        f'"data": ["{IMAGE}"]}}], "outputs": [{{"name": "PREDICTION", "parameters": {{"classification": 2}}}}]}}',
    ),
    b"GET /models/x%ff HTTP/1.1\r\nHost: x\r\n\r\n" + b"GET /v2/models/x/versions/1/ready HTTP/1.1\r\nHost: x\r\n\r\n",
]
"""Seeds of mutations: small requests of many kinds, as they go over the wire."""
TEXTS = (
    *('""', '"\\ud800"', '"a\\u0000b"', '"\\x"', '"\\u12"', '"' + "a" * 3_000 + '"', '"\ud800"', '"\t"', '"é"'),
    *("-0", "1.5", "1e999", "5e-324", "NaN", "-Infinity", "01", "9" * 5_000, "1e5000000", "18446744073709551616"),
    *("null", "[]", "{}", "treu", "[1,]", '{"a":}', "[" * 5_000, '{"a":' * 5_000, "", " "),
)
"""Texts in JSON that are wrong, odd, or both."""
FIELDS = {
    b"Host": (b"", b"[", b"x:99999", b"\xff", b"x" * 5_000),
    b"Connection": (b"", b"close", b"Upgrade, close", b"\x80"),
    b"Upgrade": (b"h2c", b"websocket, h2c", b"WEBSOCKET", b"", b"websocket\xff"),
    b"Sec-WebSocket-Version": (b"8", b"13, 8", b"-13", b"9" * 5_000, b"", b"\xb9"),
    b"Sec-WebSocket-Key": (b"short", b"=" * 24, b"", b"\xff" * 24, b"A" * 5_000, KEY + b", " + KEY),
    b"Origin": (b"http://[::1", b"null", b"\xff\xfe", b"//", b"http://x:99999999", b"http://\xe2\x84\x80.x"),
    b"Sec-WebSocket-Protocol": (b"gateway-stream", b"gateway-key.\xff", b"gateway-key." + b"k" * 3_000, b",,,", b""),
    b"Sec-WebSocket-Extensions": (b"permessage-deflate; server_max_window_bits=99", b'x; y="z', b";;;", b"\xff"),
    b"Content-Length": (b"5", b"0", b"-1", b"9" * 30, b"300000000"),
    b"Transfer-Encoding": (b"chunked", b"identity", b"gzip, chunked"),
}
"""Values of headers that have some meaning in a handshake; most of them are wrong."""
VALUES = ("2", "-1", "1e999", "1e-9", "nan", "0x1", "1_0", "9" * 5_000, "", "[]", "\\ud800", "%ed%a0%80", "%00", "%ff")
QUERIES = (
    *(b"?top_k=1&top_k=2", b"?" + b"a&" * 2_000, b"?drop=never", b"#fragment", b"/", b"%00"),
    *(f"?{name}={value}".encode() for name in (*StreamParameters.model_fields, "%ff") for value in VALUES),
)
FRAMES = (
    message(TEXT, b"{}", masked=False),
    *(message(opcode, b"x") for opcode in range(16)),
    *(message(bits | opcode, b"{}") for bits in (0x40, 0x20, 0x10) for opcode in (TEXT, BINARY, PING)),
    *(message(TEXT, text) for text in (b"\xff\xfe", b"\xed\xa0\x80", b"\xc3\x28")),
    message(TEXT, b'"\xc3', final=False) + message(CONTINUATION, b'"'),
    message(BINARY, b"x", final=False) + message(BINARY, b"x"),
    message(PING, bytes(126)),
    message(PING, final=False),
    message(CLOSE, b"\x03"),
    *(message(CLOSE, struct.pack("!H", code)) for code in (0, 999, 1004, 1005, 1006, 1015, 2_999, 4_999, 65_535)),
    message(CLOSE, struct.pack("!H", 1000) + b"\xff"),
    message(CLOSE, struct.pack("!H", 1000)) + message(TEXT, b"{}"),
    *(message(BINARY, b"x", claims=length) for length in (126, 65_536, 2**31, 2**63 - 1, 2**63, 2**64 - 1)),
    b"\x82\xfe\x00\x05" + bytes(9),
    message(BINARY, final=False) + message(CONTINUATION, final=False) * 2_000,
    message(BINARY),
    b"GET / HTTP/1.1\r\n\r\n",
)
"""Frames that RFC 6455 forbids, or that are odd."""


def streams() -> Iterator[Case]:
    """Each wrong header, query, frame and text of the tables above by itself, in a stream that is good else."""
    for name, values in FIELDS.items():
        page = [(b"Origin", b"http://x")] if name == b"Host" else []
        fields = [field for field in GOOD if field[0] != name]
        yield from (_stream(handshake([*fields, *page, (name, value)])) for value in values)
    yield from (_stream(handshake(query=query), message(BINARY, PNG)) for query in QUERIES)
    yield from (_stream(handshake(), frame) for frame in FRAMES)
    for text in TEXTS:
        yield _stream(handshake(), message(TEXT, text.encode("utf-8", "surrogatepass")), message(BINARY, PNG))


def _stream(*pieces: bytes) -> Case:
    """A stream that its client closes."""
    return Case([*pieces, message(CLOSE, struct.pack("!H", 1000))], waits=True)


def damaged(rng: random.Random, seed: bytes, seeds: list[bytes]) -> bytes:
    """A request with parts repeated, stretched, cut or moved, and sometimes pipelined.

    Mostly only its body is damaged, and its length is correct, so that more of it is read.
    """
    head, blank, body = seed.partition(b"\r\n\r\n")
    if body and rng.random() < 0.7:
        body = _damage(rng, body, seeds)
        whole = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(body), head) + blank + body
    else:
        whole = _damage(rng, seed, seeds)
    if rng.random() < 0.05:
        return whole[: 40 + len(whole) % 4_000] * rng.randrange(1, 300)
    return whole * rng.choice((1, 1, 1, 2))


def _damage(rng: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_DAMAGES)(rng, damaged)
        if len(damaged) > LARGEST_BYTES:
            break
    whole = bytes(damaged[:LARGEST_BYTES])
    return mutate(rng, whole, seeds) if rng.random() < 0.3 else whole


def _repeat_line(rng: random.Random, request: bytearray) -> None:
    lines = bytes(request).split(b"\r\n")
    place = rng.randrange(len(lines))
    times = rng.choice((2, 50, 2_000, 20_000))
    lines[place:place] = [lines[place]] * min(times, LARGEST_BYTES // (len(lines[place]) + 2))
    request[:] = b"\r\n".join(lines)


def _stretch(rng: random.Random, request: bytearray) -> None:
    """The same byte or bytes many times: a name, a value, blanks, digits, brackets."""
    place = rng.randrange(len(request) + 1)
    unit = bytes(request[place : place + rng.choice((1, rng.randrange(1, 30)))]) or b"x"
    unit = rng.choice((unit, *(bytes([b]) for b in b' \t\r\n0A"\\[{,;=&%:-/')))
    request[place:place] = unit * rng.choice((2, 100, 10_000, 300_000 // len(unit)))


def _number(rng: random.Random, request: bytearray) -> None:
    """Replace digits."""
    digits = [place for place, byte in enumerate(request) if 48 <= byte < 58]
    if digits:
        place = rng.choice(digits)
        request[place : place + 1] = rng.choice((b"", b"0", b"-1", b"9" * 20, b"9" * 5_000, b"1e400", b"0x10", b"7f"))


_PIECES = (
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"Upgrade: h2c\r\nConnection: Upgrade\r\n"),
    *(b"Expect: 100-continue\r\n", b"Host: [\r\n", b"filename*=punycode''" + b"a" * 2_000, b"filename*=undefined''x"),
    *(
        b"\r\n\r\n",
        b"0\r\nA: b\r\n\r\n",
        b'"\\ud800"',
        b"\xed\xa0\x80",
        b"NaN",
        b"1e999",
        b"5e-324",
        b"[" * 50,
        b"%ff%00",
    ),
)


def _insert(rng: random.Random, request: bytearray) -> None:
    place = rng.randrange(len(request) + 1)
    request[place:place] = rng.choice(_PIECES)


_DAMAGES = (_repeat_line, _stretch, _number, _insert)


def _split(rng: random.Random, request: bytes) -> list[bytes]:
    """The same bytes in a few pieces."""
    cuts = sorted(rng.randrange(len(request) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    return [request[start:end] for start, end in zip([0, *cuts], [*cuts, len(request)], strict=True)]


def run(requests: int, seed: int) -> Report:
    """Damage requests and streams at random, with some in a single packet and some reset; see run_cases."""
    seeds = {"requests": REQUESTS, "streams": [b"".join(case.pieces) for case in streams()]}

    def make(rng: random.Random) -> Case:
        kind = seeds[rng.choice(sorted(seeds))]
        return Case(_split(rng, damaged(rng, rng.choice(kind), kind)), reset=rng.random() < 0.1)

    return run_cases(make, exchange, requests, seed, at_once=BATCH)
