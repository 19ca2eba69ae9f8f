"""Damaged requests over raw sockets: `python -m tests.fuzz http --seconds 60`.

The gateway runs alone in a process of its own; see tests.fuzz.service for what is a fault.
"""

import contextlib
import math
import random
import re
from base64 import b64encode

from bench.http_load import form
from tests.attack.parsers import INFER, JSON, SMALL_BMP
from tests.attack.target import MULTIPART, chunked, receive
from tests.fuzz.mutations import mutate
from tests.fuzz.service import Case, Report, Server, run_cases

HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LARGEST_BYTES = 2_000_000
SECONDS_TO_ANSWER = 3.0


def exchange(server: Server, case: Case) -> str:
    """Send the pieces; return the first status line, or how the connection ended."""
    try:
        with server.connect() as connection:
            with contextlib.suppress(OSError):  # refused before all was sent
                for piece in case.pieces:
                    connection.sendall(piece)
            received = receive(connection, SECONDS_TO_ANSWER)
    except OSError as exc:
        return type(exc).__name__
    if not received:
        return "closed"  # or reset, as its bytes were not all read
    if not received.startswith(b"HTTP/1.1 "):
        return f"fault: no HTTP: {received[:40]!r}"
    answer = received[:12].decode("latin-1")
    return f"fault: {answer}" if answer.endswith(" 500") else answer


def _post(path: str, content_type: str, body: str | bytes, *headers: str) -> bytes:
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + data


IMAGE = b64encode(SMALL_BMP).decode()
REQUESTS = [
    HEAD + b"Content-Length: 4\r\n\r\nabcd",
    CHUNKED + b"".join(chunked([b"ab", b"cd"])),
    CHUNKED + b"4;a=b\r\nabcd\r\n0\r\nA: b\r\n\r\n",
    b"GET /health/live?a=b HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n" * 2,
    _post("/predict?top_k=2", MULTIPART, b"".join(form([SMALL_BMP, b"x"]))),
    _post("/predict", JSON, '{"images": [{"b64": "QUJD", "filename": "a\\u0041.jpg"}, {"b64": ""}]}'),
    _post(
        INFER, JSON, '{"id": "1", "inputs": [{"name": "IMAGE", "shape": [1], "datatype": "BYTES", "data": ["QQ=="]}]}'
    ),
    _post("/predict", JSON, f'{{"inputs": "{IMAGE}", "parameters": {{"top_k": 1, "function_to_apply": "softmax"}}}}'),
    _post("/embed?encoding_format=base64&format=openai", JSON, f'{{"images": [{{"b64": "{IMAGE}"}}]}}'),
    _post("/explain?masks=9&grid=2&class_id=0", "image/bmp", "x"),
    _post("/explain?masks=2&label=a", JSON, f'{{"images": [{{"b64": "{IMAGE}"}}]}}'),
    _post("/predict?timeout=1.5&labels=a,b&threshold=0.1&frames=2&version=1&model=m", "image/bmp", "x"),
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


def damaged(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A request with parts repeated, stretched, cut or moved, and sometimes pipelined.

    Mostly only its body is damaged, and its length is correct, so that more of it is read.
    """
    seed = rng.choice(seeds)
    head, blank, body = seed.partition(b"\r\n\r\n")
    if body and rng.random() < 0.7:
        body = damage(rng, body, seeds)
        whole = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(body), head) + blank + body
    else:
        whole = damage(rng, seed, seeds)
    if rng.random() < 0.05:
        return whole[: 40 + len(whole) % 4_000] * rng.randrange(1, 300)
    return whole * rng.choice((1, 1, 1, 2))


def damage(rng: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    """Bytes with parts repeated, stretched, cut or moved."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_DAMAGES)(rng, damaged)
        if len(damaged) > LARGEST_BYTES:
            break
    whole = bytes(damaged[:LARGEST_BYTES])
    return mutate(rng, whole, seeds) if rng.random() < 0.3 else whole


def _lines(request: bytearray) -> list[bytes]:
    return bytes(request).split(b"\r\n")


def _repeat_line(rng: random.Random, request: bytearray) -> None:
    lines = _lines(request)
    place = rng.randrange(len(lines))
    times = rng.choice((2, 50, 2_000, 20_000))
    lines[place:place] = [lines[place]] * min(times, LARGEST_BYTES // (len(lines[place]) + 2))
    request[:] = b"\r\n".join(lines)


def _swap_lines(rng: random.Random, request: bytearray) -> None:
    lines = _lines(request)
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    request[:] = b"\r\n".join(lines)


def _stretch(rng: random.Random, request: bytearray) -> None:
    """The same byte many times: a name, a value, blanks, digits, brackets."""
    place = rng.randrange(len(request) + 1)
    byte = rng.choice((bytes(request[place : place + 1]) or b"x", *(bytes([b]) for b in b' \t\r\n0A"\\[{,;=&%:-/')))
    request[place:place] = byte * rng.choice((2, 100, 20_000, 300_000))


def _stretch_pair(rng: random.Random, request: bytearray) -> None:
    place = rng.randrange(len(request) + 1)
    unit = bytes(request[place : place + rng.randrange(1, 30)]) or b"ab"
    request[place:place] = unit * rng.choice((2, 100, 10_000))


def _number(rng: random.Random, request: bytearray) -> None:
    """Replace digits."""
    digits = [place for place, byte in enumerate(request) if 48 <= byte < 58]
    if digits:
        place = rng.choice(digits)
        request[place : place + 1] = rng.choice((b"", b"0", b"-1", b"9" * 20, b"9" * 5_000, b"1e400", b"0x10", b"7f"))


def _insert(rng: random.Random, request: bytearray) -> None:
    place = rng.randrange(len(request) + 1)
    request[place:place] = rng.choice(
        (
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Length: 3\r\n",
            b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
            b"Expect: 100-continue\r\n",
            b"Host: [\r\n",
            b"filename*=punycode''" + b"a" * 2_000,
            b"filename*=undefined''x",
            b"\r\n\r\n",
            b"0\r\nA: b\r\n\r\n",
            b"\\ud800",
            b'"\\ud800"',
            b"\xed\xa0\x80",
            b"NaN",
            b"1e999",
            b"5e-324",
            b"[" * 50,
            b"%ff%00",
        )
    )


_DAMAGES = (_repeat_line, _swap_lines, _stretch, _stretch_pair, _number, _insert)


def split(rng: random.Random, request: bytes) -> list[bytes]:
    """The same bytes in a few pieces."""
    cuts = sorted(rng.randrange(len(request) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    return [request[start:end] for start, end in zip([0, *cuts], [*cuts, len(request)], strict=True)]


def run(seconds: float = math.inf, seed: int = 0, *, requests: float = math.inf) -> Report:
    """Damage requests at random; see run_cases."""

    def make(rng: random.Random) -> Case:
        return Case(split(rng, damaged(rng, REQUESTS)))

    return run_cases(make, exchange, seconds, seed, requests=requests)
