"""Clients that send slowly, keep connections, leave, or do not read."""

import base64
import contextlib
import itertools
import json
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from bench.attack import files
from bench.attack.parsers import INFER, JSON, SMALL_BMP
from bench.attack.target import MULTIPART, Attacks, PromiseBroken, ServiceOptions, Target, receive, repeated, summary
from bench.http_load import BOUNDARY, form
from gateway.keys import add_key

ATTACKS = Attacks()
STALL_SECONDS = 5.0
SEQUENCES = 1_100
SMALL_FORM = b"".join(form([SMALL_BMP] * 20))
HEAD = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: {MULTIPART}\r\n"
PART = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'.encode()


@ATTACKS.add(requests=13)
def thirteen_that_stall(target: Target) -> str:
    """Thirteen uploads that stop after 19 MB each."""
    opened = [_begun(target, target.nbytes * 19 // 20) for _ in range(13)]
    time.sleep(STALL_SECONDS)
    return answers(opened)


@ATTACKS.add()
def one_that_drips(target: Target) -> str:
    """One part of 255 MB, too large by far, whose client then drips."""
    connection = _begun(target, 255_000_000)
    _drip([connection], b"x")
    return answers([connection])


@ATTACKS.add(requests=200)
def many_that_drip(target: Target) -> str:
    """Two hundred uploads that drip a byte at a time."""
    opened = [_begun(target, 1_000) for _ in range(200)]
    _drip(opened, b"x")
    return answers(opened)


@ATTACKS.add(requests=SEQUENCES, options=ServiceOptions(keys=True))
def one_with_sequences_that_never_end(target: Target) -> str:
    """A client that begins more sequences than Triton has places for, while another one begins its first."""
    image = base64.b64encode(SMALL_BMP).decode()

    def begin(client: Target, number: int) -> str:
        parameters = {"sequence_id": number, "sequence_start": True}
        inputs = [{"name": "IMAGE", "datatype": "BYTES", "shape": [1], "data": [image]}]
        return client.post(INFER, json.dumps({"inputs": inputs, "parameters": parameters}).encode(), JSON)

    begun = Counter(begin(target, number) for number in range(1, SEQUENCES + 1))
    assert target.keys_file is not None
    key = add_key(target.keys_file, f"other-{time.monotonic_ns()}")
    other = begin(replace(target, key=key), 1)
    if not other.startswith("200"):
        raise PromiseBroken(f"another client's first sequence was answered with {other}")
    return ", ".join(f"{count} × {answer}" for answer, count in begun.most_common())


@ATTACKS.add(requests=500)
def many_that_say_nothing(target: Target) -> str:
    """Five hundred connections without a request."""
    opened = _connections(target, 500)
    time.sleep(STALL_SECONDS)
    return answers(opened)


@ATTACKS.add(requests=30)
def many_that_do_not_read(target: Target) -> str:
    """Thirty clients that ask for large answers and do not read them."""
    body = b"".join(form([SMALL_BMP] * 90))
    opened = []
    for _ in range(30):
        connection = target.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        head = HEAD.replace("/predict", "/predict?top_k=1000") + f"Content-Length: {len(body)}\r\n\r\n"
        with contextlib.suppress(OSError):
            connection.sendall(head.encode() + body)
        opened.append(connection)
    time.sleep(STALL_SECONDS)
    return answers(opened)


@ATTACKS.add(requests=60)
def many_that_leave(target: Target) -> str:
    """Sixty clients that send an image which decodes slowly, and leave."""
    body = b"".join(form([files.png(7_000, 7_000, bits=1, colour=0)]))
    head = HEAD + f"Content-Length: {len(body)}\r\n\r\n"
    for _ in range(60):
        with contextlib.suppress(OSError), target.connect() as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.02)
    return "left"


@ATTACKS.add(requests=100)
def many_at_once(target: Target) -> str:
    """A hundred requests at once with twenty images each."""
    head = HEAD + f"Connection: close\r\nContent-Length: {len(SMALL_FORM)}\r\n\r\n"
    opened = _connections(target, 100)
    for connection in opened:
        with contextlib.suppress(OSError):
            connection.sendall(head.encode() + SMALL_FORM)
    return answers(opened)


def _connections(target: Target, count: int) -> list[socket.socket]:
    opened = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            opened.append(target.connect())
    return opened


def _begun(target: Target, nbytes: int) -> socket.socket:
    """An unfinished upload of which `nbytes` have been sent."""
    connection = target.connect()
    connection.settimeout(3.0)
    with contextlib.suppress(OSError):
        connection.sendall(HEAD.encode() + b"Content-Length: 1000000000\r\n\r\n" + PART)
        for piece in repeated(bytes(1_000), nbytes, 1_000):
            connection.sendall(piece)
    return connection


def _drip(connections: Iterable[socket.socket], drop: bytes) -> None:
    ends = time.monotonic() + STALL_SECONDS
    for _ in itertools.takewhile(lambda _: time.monotonic() < ends, itertools.count()):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(drop)
        time.sleep(0.25)


def answers(connections: Iterable[socket.socket]) -> str:
    """Count the answers so far, and close the connections."""
    counts: Counter[str] = Counter()
    for connection in connections:
        with connection:
            connection.settimeout(0.01)
            counts[_answer(connection)] += 1
    return ", ".join(f"{count} × {answer}" for answer, count in counts.most_common())


def _answer(connection: socket.socket) -> str:
    received = receive(connection, 0.02)
    if not received:
        with contextlib.suppress(TimeoutError):
            with contextlib.suppress(ConnectionError):
                connection.recv(1)
            return "closed"
        return "none yet"
    return summary(received)


# fmt: off
ATTACKS.rows(
    ("model-that-is-unknown", "Two hundred files for a model that does not exist",
     lambda target: target.post_files([SMALL_BMP] * 200, "?model=nope")),
)
# fmt: on
