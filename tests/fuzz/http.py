"""Damaged requests over raw sockets: `python -m tests.fuzz http --seconds 60`.

The gateway runs alone in a process of its own. A fault is: a dead process, an answer that is no HTTP or a 500, an
event loop that was away for long by its own work, and more processor time or memory than bytes account for.
"""
# ruff: noqa: T201 - a command prints

import argparse
import contextlib
import json
import math
import random
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from bench.attack.parsers import http_attacks
from bench.attack.target import receive
from tests.fuzz.mutations import mutate
from tests.processes import Gateway, running_gateway
from tests.stub_server import COMMAND

BATCH = 25
"""Requests after which the process is looked at."""
LONGEST_PAUSE_SECONDS = 0.25
SECONDS_PER_BATCH, SECONDS_PER_MEGABYTE = 1.0, 0.5
MOST_MEMORY_BYTES = 200_000_000
LARGEST_BYTES = 2_000_000
SECONDS_TO_ANSWER = 3.0
MOST_FAULTS = 10
SETTINGS = {"upload_idle_timeout_seconds": 0.3, "max_wait_seconds": 1.0, "max_request_bytes": 30_000_000}


@dataclass
class HttpReport:
    requests: int = 0
    sent_bytes: int = 0
    cpu_seconds: float = 0.0
    grown_bytes: int = 0
    longest_pause_seconds: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Server:
    """The gateway, and what it has cost since it was last asked."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        self._process = psutil.Process(gateway.process.pid)
        self._cpu_seconds = self._used()
        self._log_bytes = 0
        self.resident_bytes = gateway.resident_bytes()

    def cpu_seconds(self) -> float:
        before, self._cpu_seconds = self._cpu_seconds, self._used()
        return self._cpu_seconds - before

    def longest_pause_seconds(self) -> float:
        """By the heartbeat's log, without the time for which it was not let run."""
        with self.gateway.log.open("rb") as log:
            log.seek(self._log_bytes)
            new = log.read()
        whole = new.rfind(b"\n") + 1
        self._log_bytes += whole
        events = [json.loads(line) for line in new[:whole].splitlines() if line.startswith(b"{")]
        paused = [min(e["seconds"], e["cpu_seconds"]) for e in events if e["event"] == "loop_paused"]
        return max(paused, default=0.0)

    def lives(self) -> bool:
        try:
            return httpx.get(f"{self.gateway.url}/health/live", timeout=10).status_code == 200
        except httpx.HTTPError:
            return False

    def exchange(self, pieces: list[bytes]) -> str:
        """Send pieces, and say what came back first: a status line, or how the connection ended."""
        try:
            with socket.create_connection(self.address, timeout=SECONDS_TO_ANSWER) as connection:
                with contextlib.suppress(OSError):  # refused before all was sent
                    for piece in pieces:
                        connection.sendall(piece)
                received = receive(connection, SECONDS_TO_ANSWER)
        except OSError as exc:
            return type(exc).__name__
        if not received:
            return "closed"  # or reset, as its bytes were not all read
        return received[:12].decode("latin-1") if received.startswith(b"HTTP/1.1 ") else f"no HTTP: {received[:40]!r}"

    def _used(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


def damaged(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A request of which something was repeated, grown, cut or put elsewhere, and sometimes several behind another.

    Mostly its body alone is damaged, and its length told right, so that it is read deeper.
    """
    seed = rng.choice(seeds)
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
    damage = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_DAMAGES)(rng, damage)
        if len(damage) > LARGEST_BYTES:
            break
    whole = bytes(damage[:LARGEST_BYTES])
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
    """One byte many times: a name, a value, blanks, digits, brackets."""
    place = rng.randrange(len(request) + 1)
    byte = rng.choice((bytes(request[place : place + 1]) or b"x", *(bytes([b]) for b in b' \t\r\n0A"\\[{,;=&%:-/')))
    request[place:place] = byte * rng.choice((2, 100, 20_000, 300_000))


def _stretch_pair(rng: random.Random, request: bytearray) -> None:
    place = rng.randrange(len(request) + 1)
    unit = bytes(request[place : place + rng.randrange(1, 30)]) or b"ab"
    request[place:place] = unit * rng.choice((2, 100, 10_000))


def _number(rng: random.Random, request: bytearray) -> None:
    """Digits that say something else."""
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
            b"%ff%00",
        )
    )


_DAMAGES = (_repeat_line, _swap_lines, _stretch, _stretch_pair, _number, _insert)


def split(rng: random.Random, request: bytes) -> list[bytes]:
    """The same bytes in a few pieces."""
    cuts = sorted(rng.randrange(len(request) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    return [request[start:end] for start, end in zip([0, *cuts], [*cuts, len(request)], strict=True)]


def run(seconds: float = math.inf, seed: int = 0, *, requests: float = math.inf) -> HttpReport:
    """Damage requests at random, until the time or their number is reached or too much has gone wrong."""
    report, seeds = HttpReport(), list(http_attacks())
    with (
        tempfile.TemporaryDirectory() as folder,
        running_gateway(Path(folder) / "log", command=COMMAND, **SETTINGS) as gateway,
    ):
        server = Server(gateway)
        deadline = time.monotonic() + seconds
        while report.requests < requests and time.monotonic() < deadline and len(report.faults) < MOST_FAULTS:
            began, sent = report.requests, 0
            for _ in range(BATCH):
                # A generator of its own for each request: any one can be made again from the seed and its number.
                rng = random.Random(f"{seed} {report.requests}")
                request = damaged(rng, seeds)
                answer = server.exchange(split(rng, request))
                report.requests += 1
                sent += len(request)
                report.answers[answer[:60]] += 1
                if answer.startswith("no ") or answer.endswith(" 500"):
                    report.faults.append(f"seed {seed}, number {report.requests - 1}: {answer}")
            _look(server, report, sent, f"seed {seed}, numbers {began} to {report.requests - 1}")
            if not server.lives():
                report.faults.append(f"seed {seed}, before number {report.requests}: nobody answers")
                break
    return report


def _look(server: Server, report: HttpReport, sent: int, which: str) -> None:
    cpu_seconds, pause_seconds = server.cpu_seconds(), server.longest_pause_seconds()
    report.sent_bytes += sent
    report.cpu_seconds += cpu_seconds
    report.longest_pause_seconds = max(report.longest_pause_seconds, pause_seconds)
    report.grown_bytes = server.gateway.resident_bytes() - server.resident_bytes
    if pause_seconds > LONGEST_PAUSE_SECONDS:
        report.faults.append(f"{which}: the event loop was away for {pause_seconds:.2f} s")
    if cpu_seconds > SECONDS_PER_BATCH + SECONDS_PER_MEGABYTE * sent / 1e6:
        report.faults.append(f"{which}: {cpu_seconds:.1f} s of processor time for {sent} bytes")
    if report.grown_bytes > MOST_MEMORY_BYTES:
        report.faults.append(f"{which}: {report.grown_bytes / 1e6:.0f} MB of memory")
        server.resident_bytes += report.grown_bytes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz http", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed damages the same way")
    options = parser.parse_args(arguments)
    report = run(options.seconds, options.seed)
    print(
        f"seed {options.seed}: {report.requests} requests of {report.sent_bytes / 1e6:.0f} MB, "
        f"{report.cpu_seconds:.1f} s of processor time, longest pause of the event loop "
        f"{report.longest_pause_seconds * 1e3:.0f} ms (0: below 50), memory {report.grown_bytes / 1e6:+.0f} MB"
    )
    for answer, count in report.answers.most_common():
        print(f"{count:8d}  {answer}")
    for fault in report.faults:
        print(f"FAULT {fault}", file=sys.stderr)
    return 1 if report.faults else 0
