"""`python -m bench.overload`: throughput and latency of the service at five times its capacity."""

import asyncio
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from bench import photos as photographs
from bench.http_load import requests
from bench.measurement import percentile
from bench.photos import Photo
from bench.remote import Remote
from bench.repository import RECIPES, repository
from bench.servers import service
from gateway.settings import MIB, Settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

CONCURRENCY = 32
RECOVERED_WITHIN = 2.0
"""A request is answered as before the overload when it takes at most this many times as long."""


@dataclass
class Outcomes:
    """The results of the requests of one phase."""

    seconds: float
    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies_seconds: list[float] = field(default_factory=list)
    """Of those that were classified."""

    @property
    def goodput(self) -> float:
        """Images classified a second."""
        return self.statuses[200] / self.seconds


class Client:
    """Sends single photographs on kept-alive connections, in a process of its own."""

    def __init__(self, url: str, photos: list[Photo]) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._wires = [call.wire for call in requests(photos, 1, f"{self._host}:{self._port}")]
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def closed_loop(self, seconds: float, concurrency: int) -> Outcomes:
        """Each of `concurrency` clients sends its next request after the response to the last one."""
        return uvloop.run(self._closed_loop(seconds, concurrency))

    def open_loop(self, seconds: float, rate: float) -> Outcomes:
        """A request every 1 / rate seconds, regardless of the results of the others."""
        return uvloop.run(self._open_loop(seconds, rate))

    async def _closed_loop(self, seconds: float, concurrency: int) -> Outcomes:
        self._idle = []
        outcomes = Outcomes(seconds)
        end = time.perf_counter() + seconds

        async def one() -> None:
            while time.perf_counter() < end:
                await self._send(outcomes)

        await asyncio.gather(*(one() for _ in range(concurrency)))
        return outcomes

    async def _open_loop(self, seconds: float, rate: float) -> Outcomes:
        self._idle = []
        outcomes = Outcomes(seconds)
        started = time.perf_counter()
        pending: set[asyncio.Task[None]] = set()
        while (now := time.perf_counter() - started) < seconds:
            while outcomes.sent < now * rate:
                task = asyncio.ensure_future(self._send(outcomes))
                pending.add(task)
                task.add_done_callback(pending.discard)
                outcomes.sent += 1
            await asyncio.sleep(0.001)
        counted = Counter(outcomes.statuses)
        await asyncio.gather(*pending)
        # Responses after the end do not count as goodput of these seconds, but must not be lost either.
        outcomes.statuses[0] += 0
        late = outcomes.statuses[200] - counted[200]
        outcomes.statuses[200] -= late
        return outcomes

    async def _send(self, outcomes: Outcomes) -> None:
        started = time.perf_counter()
        try:
            reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
            writer.write(self._wires[outcomes.sent % len(self._wires)])
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
        except (OSError, asyncio.IncompleteReadError):
            outcomes.statuses[-1] += 1
            return
        if b"connection: close" in head.lower():
            writer.close()
        else:
            self._idle.append((reader, writer))
        outcomes.statuses[status] += 1
        if status == 200:
            outcomes.latencies_seconds.append(time.perf_counter() - started)


@app.command()
def main(
    model: Annotated[str, typer.Option(help=", ".join(RECIPES))] = "efficientnet-lite0",
    seconds: Annotated[float, typer.Option(help="Length of the overload.")] = 60.0,
    times: Annotated[float, typer.Option(help="Load, as a multiple of the capacity.")] = 5.0,
) -> None:
    """Measure the capacity, send several times as much, and print the rate and latency of the responses."""

    def say(text: str) -> None:
        typer.echo(f"overload | {text}", err=True)

    photos = photographs.load(None)
    with repository(model, [], say) as models, service(models, cache_bytes=0, say=say) as running:
        (gateway, *_) = running.processes["gateway"]
        with Remote(Client, running.http_url, photos) as client:
            client.call("closed_loop", 3.0, CONCURRENCY)
            say(f"capacity: {CONCURRENCY} clients that wait for their answers, 15 s")
            peak: Outcomes = client.call("closed_loop", 15.0, CONCURRENCY)
            calm: Outcomes = client.call("closed_loop", 3.0, 1)
            memory_before = gateway.memory_info().rss
            say(f"{peak.goodput:.0f} images/s; overload: {times * peak.goodput:.0f} requests/s for {seconds:g} s")
            over: Outcomes = client.call("open_loop", seconds, times * peak.goodput)
            memory_after = gateway.memory_info().rss
            ended = time.perf_counter()
            usual = statistics.median(calm.latencies_seconds)
            while True:
                after: Outcomes = client.call("closed_loop", 0.2, 1)
                if after.latencies_seconds and min(after.latencies_seconds) < RECOVERED_WITHIN * usual:
                    break
            recovered_seconds = time.perf_counter() - ended
    p99, usual_p99 = (percentile(phase.latencies_seconds, 99) for phase in (over, peak))
    bound = Settings.model_fields["max_wait_seconds"].default
    table = Table(title=f"{times:g} times the capacity for {seconds:g} s, {model}, one gateway process")
    for column in ("figure", "value"):
        table.add_column(column)
    for name, value in (
        ("goodput / peak goodput without overload", f"{over.goodput / peak.goodput:.2f}"),
        (
            "p99 of the accepted / (max_wait_seconds + p99 without overload)",
            f"{p99 / (bound + usual_p99):.2f}  ({p99:.2f} s / ({bound:g} s + {usual_p99:.2f} s))",
        ),
        ("refused at once with 503", f"{over.statuses[503] / over.sent:.0%} of {over.sent}"),
        ("other answers", str({s: n for s, n in over.statuses.items() if s not in (0, 200, 503) and n}) or "none"),
        ("growth of the gateway's memory", f"{(memory_after - memory_before) / MIB:.0f} MiB"),
        ("first answer as quick as before, after the end", f"{recovered_seconds:.1f} s"),
    ):
        table.add_row(name, value)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(app())
