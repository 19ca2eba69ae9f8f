"""Damaged WebSocket handshakes and messages over raw sockets: `python -m tests.fuzz streams --seconds 60`.

The gateway runs alone in a process of its own; see tests.fuzz.service for what is a fault.
"""

import contextlib
import json
import math
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from gateway.plugins.streams.options import StreamParameters
from tests.attack.parsers import SMALL_BMP
from tests.fuzz.http import damage, split
from tests.fuzz.service import BATCH, SECONDS_TO_END, Case, Report, Server, run_cases

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FAULTS = {1011, 4500, 4502, 4504}
"""Close codes for faults of the gateway or of Triton."""
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
RESET = struct.pack("ii", 1, 0)
PARAMETERS = (*StreamParameters.model_fields, "end")

STRINGS = (
    '""',
    '"\\ud800"',
    '"\\udfff\\ud800"',
    '"a\\u0000b"',
    '"\\ud83d\\ude00"',
    '"\\x"',
    '"\\u12"',
    '"' + "a" * 3_000 + '"',
    '"\ud800"',
    '"\t"',
    '"é"',
    '"\u202e"',
)
NUMBERS = (
    *("0", "-0", "1", "-1", "1.5", "1e999", "-1e999", "5e-324", "1e-400", "NaN", "Infinity", "-Infinity", "01", "0x1"),
    *("9" * 30, "9" * 5_000, "1." + "0" * 5_000, "1e5000000", "18446744073709551616"),
)
OTHERS = ("null", "true", "false", "[]", "{}", "treu", "nul", "[1,]", '{"a":}', "[" * 5_000, '{"a":' * 5_000, "", " ")
"""Values in JSON that are wrong, odd, or both."""

FIELDS: Mapping[bytes, tuple[bytes, ...]] = {
    b"Host": (b"", b"[", b"x:99999", b"[::1", b"\xff", b"x y", b"x" * 300, b"x" * 5_000),
    b"Connection": (b"", b"close", b"keep-alive", b"Upgrade, close", b"upgrade", b"keep-alive, Upgrade", b"\x80"),
    b"Upgrade": (b"h2c", b"websocket, h2c", b"WEBSOCKET", b"websocket/13", b"", b"websocket\xff"),
    b"Sec-WebSocket-Version": (b"8", b"0", b"13, 8", b"-13", b"9" * 5_000, b"", b"\xb9"),
    b"Sec-WebSocket-Key": (b"short", b"=" * 24, b"A" * 24, b"", b"\xff" * 24, b"A" * 5_000, KEY + b", " + KEY),
    b"Origin": (
        b"http://[::1",
        b"http://[",
        b"null",
        b"http://x]",
        b"\xff\xfe",
        b"//",
        b"",
        b"http://x:y",
        b"http://x:99999999",
        b"http://\xc3\xa9",
        b"http://\xe2\x84\x80.x",
        b"http://[v1.x]",
        b"http://[::ffff:999.1.1.1]",
        b"http://x, http://y",
        b"http://user@x",
        b"http://" + b"x" * 5_000,
        b"javascript:0",
    ),
    b"Sec-WebSocket-Protocol": (
        b"gateway-stream",
        b"gateway-key.",
        b"gateway-key.\xff",
        b"gateway-key." + b"k" * 3_000,
        b",,,",
        b"a b",
        b"a," * 1_000,
        b"",
    ),
    b"Sec-WebSocket-Extensions": (
        b"permessage-deflate",
        b"permessage-deflate; server_max_window_bits=99",
        b"permessage-deflate; client_max_window_bits; a=b",
        b'x; y="z',
        b";;;",
        b"a," * 1_000,
        b"\xff",
    ),
    b"Authorization": (b"Bearer \xff", b"Bearer", b"Basic x", b"Bearer  "),
    b"X-API-Key": (b"\xff", b"", b"k" * 5_000),
    b"X-Request-ID": (b"\xff\x80", b"x" * 5_000, b"a\tb", b""),
    b"traceparent": (b"00-0-0-0", b"00-zz", b"\xff", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"-" * 2_000),
    b"tracestate": (b"a=b," * 500, b"\xff=1", b"="),
    b"X-Client-ID": (b"\xff", b"", b"x" * 5_000),
    b"Content-Length": (b"5", b"0", b"-1", b"9" * 30, b"300000000"),
    b"Transfer-Encoding": (b"chunked", b"identity", b"gzip, chunked"),
    b"Expect": (b"100-continue", b"x"),
    b"Cookie": (b"\xff=\xff", b"a" * 7_000),
}
"""Values of headers that have some meaning in a handshake; most of them are wrong."""
QUERIES = (
    b"?timeout=" + b"9" * 5_000,
    b"?top_k=" + b"9" * 5_000,
    b"?labels=%ff%fe&labels=%00",
    b"?model=" + b"x" * 3_000,
    b"?top_k=1&top_k=2",
    b"?alpha=1e-400&window=1",
    b"?" + b"a&" * 2_000,
    b"?drop=never",
    b"?smoothing=none",
    b"?threshold=-0",
    b"#fragment",
    b"/",
    b"%00",
    b"",
    *(
        f"?{name}={value}".encode()
        for name in (*PARAMETERS, "%ff")
        for value in (
            *(
                "2",
                "0",
                "-1",
                "1e5",
                "1e999",
                "5e-324",
                "1e-9",
                "0.0009",
                "nan",
                "inf",
                "0x1",
                "1_0",
                "999999999999999",
            ),
            *("", "[]", "\\ud800", "%ed%a0%80", "%00", "%ff", "a" * 7_000),
        )
    ),
)


GOOD = (
    (b"Host", b"x"),
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", b"13"),
    (b"Sec-WebSocket-Key", KEY),
)


def request(
    fields: Iterable[tuple[bytes, bytes]] = GOOD, query: bytes = b"", *, line: bytes = b"GET", version: bytes = b"1.1"
) -> bytes:
    """The request that opens a stream."""
    lines = b"".join(b"%b: %b\r\n" % field for field in fields)
    return b"%b /stream%b HTTP/%b\r\n%b\r\n" % (line, query, version, lines)


def message(
    opcode: int, payload: bytes = b"", *, final: bool = True, mask: bytes | None = bytes(4), claims: int | None = None
) -> bytes:
    """A frame of RFC 6455, section 5.2; `claims` replaces the length in its header."""
    length = len(payload) if claims is None else claims
    second = 0 if mask is None else 0x80
    first = (0x80 if final else 0) | opcode
    if length < 126:
        head = struct.pack("!BB", first, second | length)
    elif length < 65_536:
        head = struct.pack("!BBH", first, second | 126, length)
    else:
        head = struct.pack("!BBQ", first, second | 127, length)
    if mask and any(mask):
        payload = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return head + (mask or b"") + payload


WRONG_FRAMES = (
    message(TEXT, b"{}", mask=None),
    *(message(opcode, b"x") for opcode in range(16)),
    *(message(bits | opcode, b"{}") for bits in (0x40, 0x20, 0x10, 0x70) for opcode in (TEXT, BINARY, PING)),
    message(TEXT, b"\xff\xfe"),
    message(TEXT, b"\xed\xa0\x80"),
    message(TEXT, b"\xc3\x28"),
    message(TEXT, b'"\xc3', final=False) + message(CONTINUATION, b'"'),
    message(CONTINUATION, b"x"),
    message(BINARY, b"x", final=False) + message(BINARY, b"x"),
    message(PING, bytes(126)),
    message(PING, final=False),
    message(CLOSE, b"\x03"),
    *(message(CLOSE, struct.pack("!H", code)) for code in (0, 999, 1004, 1005, 1006, 1015, 2_999, 4_999, 65_535)),
    message(CLOSE, struct.pack("!H", 1000) + b"\xff"),
    message(CLOSE, struct.pack("!H", 1000)) + message(TEXT, b"{}"),
    *(message(BINARY, b"x", claims=length) for length in (126, 65_536, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1)),
    b"\x82\xfe\x00\x05" + bytes(9),
    message(BINARY, final=False) + message(CONTINUATION, final=False) * 10,
    message(BINARY, final=False) + message(CONTINUATION, final=False) * 2_000,
    message(BINARY),
    message(TEXT),
    b"GET / HTTP/1.1\r\n\r\n",
)
"""Frames that RFC 6455 forbids, or that are odd."""


def every_case() -> Iterator[Case]:
    """Each wrong header, query, frame and text of the tables above by itself, in a stream that is good else."""
    for name, values in FIELDS.items():
        page = [(b"Origin", b"http://x")] if name == b"Host" else []
        fields = [field for field in GOOD if field[0] != name]
        yield from (_stream(request([*fields, *page, (name, value)])) for value in values)
    yield from (_stream(request(query=query), message(BINARY, SMALL_BMP)) for query in QUERIES)
    yield from (_stream(request(), frame) for frame in WRONG_FRAMES)
    for value in (*STRINGS, *NUMBERS, *OTHERS):
        yield _stream(request(), message(TEXT, value.encode("utf-8", "surrogatepass")), message(BINARY, SMALL_BMP))


def _stream(*pieces: bytes) -> Case:
    """A stream that its client closes."""
    return Case([*pieces, message(CLOSE, struct.pack("!H", 1000))], waits=True)


def exchange(server: Server, case: Case) -> str:
    """Send a case and wait for its end; says how it was answered or closed."""
    received = bytearray()
    first, *rest = case.pieces
    is_whole = _has_head if first.startswith(b"HEAD ") else _is_answered
    try:
        with server.connect() as connection:
            with contextlib.suppress(ConnectionError):  # refused before all was sent
                connection.sendall(first)
                if case.waits:
                    _receive(connection, received, _has_head)
                for piece in rest:
                    connection.sendall(piece)
            if case.reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                return "reset"
            _receive(connection, received, is_whole)
    except TimeoutError:
        return f"fault: neither answered nor closed within {SECONDS_TO_END:.0f} s: {bytes(received[:60])!r}"
    return outcome(bytes(received))


def _receive(connection: socket.socket, received: bytearray, is_whole: Callable[[bytes], bool]) -> None:
    """Receive until it is whole or the connection is closed; raises TimeoutError."""
    deadline = time.monotonic() + SECONDS_TO_END
    with contextlib.suppress(ConnectionError):
        while not is_whole(bytes(received)):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            if not (part := connection.recv(65_536)):
                break
            received += part


def _has_head(received: bytes) -> bool:
    return b"\r\n\r\n" in received


def _is_answered(received: bytes) -> bool:
    """Whether it is an answer of HTTP, and whole, or a stream up to its close frame."""
    head, blank, body = received.partition(b"\r\n\r\n")
    if not blank:
        return False
    if head.startswith(b"HTTP/1.1 101"):
        return _end_of(body) != ""
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(lengths) and len(body) >= int(lengths[0].partition(b":")[2])


def outcome(received: bytes) -> str:
    """What came back, in short; `fault: …` where it must not."""
    if not received:
        return "closed"
    if not received.startswith(b"HTTP/1.1 "):
        return f"fault: no HTTP: {received[:40]!r}"
    status = received[9:12].decode("latin-1")
    if status == "101":
        return _end_of(received.partition(b"\r\n\r\n")[2]) or "closed without a code"
    return f"fault: {status}" if status >= "500" and status != "503" else status


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
            return f"fault: close code {code}" if code in FAULTS else f"close code {code}"
    return ""


def run(seconds: float = math.inf, seed: int = 0, *, requests: float = math.inf) -> Report:
    """Damage the cases at random, with some in a single packet and some reset; see run_cases."""
    cases = list(every_case())

    def make(rng: random.Random) -> Case:
        case = rng.choice(cases)
        whole = b"".join(case.pieces)
        damaged = damage(rng, whole, [whole]) if rng.random() < 0.7 else whole
        return Case(split(rng, damaged), reset=rng.random() < 0.2)

    return run_cases(make, exchange, seconds, seed, requests=requests, at_once=BATCH)
