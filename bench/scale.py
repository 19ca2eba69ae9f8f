"""`python -m bench.scale`: the cost of several Tritons for one gateway process, and the effect of load balancing.

The Tritons are simulated (bench.simulated); health checks, load balancing and gRPC are the gateway's, without HTTP.
"""

import asyncio
import contextlib
import itertools
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated
from unittest import mock

import psutil
import typer
from prometheus_client import REGISTRY

from bench.output import table
from gateway.deadline import Deadline
from gateway.errors import GatewayError
from gateway.inference.backend import Batch, Call
from gateway.inference.selection import Selection
from gateway.triton import pool
from gateway.triton.addresses import Addresses
from gateway.triton.balancing import power_of_two_choice
from gateway.triton.health.checker import watcher
from gateway.triton.health.state import Schedule
from gateway.triton.pool import Share, TritonPool
from gateway.triton.quarantine import Quarantine
from gateway.triton.replica import Replica
from gateway.triton.replica_factory import ReplicaFactory
from gateway.triton.seal import Seal
from gateway.triton.triton_backend import TritonBackend

MODEL = "ensemble_model"
IMAGE_BYTES = 100_000
GOOD_SECONDS = 1.0
INSTANCES = 2
"""Instances of each model in a simulated Triton."""
SCHEDULE = Schedule(5.0, 5.0)
TARGET_FULLNESS = 0.7
"""The target of the chart's autoscaler, and of the rule that it had before."""
CHECK_SECONDS = 0.05


class Simulated:
    """Some simulated Tritons in a process of their own."""

    def __init__(self, number: int, *, seconds: float, slow: float = 1.0) -> None:
        command = [
            sys.executable,
            "-m",
            "bench.simulated",
            str(number),
            f"--instances={INSTANCES}",
            f"--seconds={seconds}",
            f"--slow={slow}",
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.addresses = [f"127.0.0.1:{port}" for port in json.loads(self._process.stdout.readline())]

    def send(self, command: str, index: int) -> None:
        """Stop or start one of them."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{command} {index}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def close(self) -> None:
        """End the process."""
        with self._process:  # closes its pipes
            self._process.kill()


@contextlib.contextmanager
def simulated(number: int, *, seconds: float = 0.02, slow: float = 1.0) -> Iterator[Simulated]:
    """Run simulated Tritons while the context is open."""
    tritons = Simulated(number, seconds=seconds, slow=slow)
    try:
        yield tritons
    finally:
        tritons.close()


@dataclass
class Client:
    """Sends images as a Poisson process, and records latencies and failures."""

    backend: TritonBackend
    timeout_seconds: float = 5.0
    latencies: list[float] = field(default_factory=list)
    failed: int = 0
    sent: int = 0

    async def run(self, rate: float, seconds: float) -> None:
        """Send for `seconds`, and wait for every response."""
        started, at = time.perf_counter(), 0.0
        async with asyncio.TaskGroup() as group:
            while (at := at + random.expovariate(rate)) < seconds:
                await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
                group.create_task(self._one())

    async def _one(self) -> None:
        self.sent += 1
        image = self.sent.to_bytes(8, "little") + bytes(IMAGE_BYTES)
        batch = Batch([image], [self.backend.seal(image)])
        sent = time.perf_counter()
        try:
            await self.backend.infer(Call(batch, MODEL, "", Selection(), Deadline.after(self.timeout_seconds), "scale"))
        except GatewayError:
            self.failed += 1
        else:
            self.latencies.append(time.perf_counter() - sent)

    @property
    def outstanding(self) -> int:
        """Images in flight and waiting."""
        return self.sent - len(self.latencies) - self.failed

    def percentile(self, percent: int) -> float:
        """Milliseconds."""
        return 1000 * statistics.quantiles(self.latencies, n=100)[percent - 1]


@contextlib.asynccontextmanager
async def gateway(addresses: list[str], *, aperture: int) -> AsyncIterator[tuple[TritonBackend, TritonPool]]:
    """A gateway's backend over a list of addresses that may change; yields the backend and its pool of Tritons."""

    async def lookup(_: str, __: int) -> list[str]:
        return list(addresses)

    factory = ReplicaFactory(model_name=MODEL, schedule=SCHEDULE, watch=watcher())
    tritons = TritonPool(Addresses(["triton:8001"], lookup), factory, Share(aperture, 32, "bench"))
    backend = TritonBackend(tritons, model_name=MODEL, seal=Seal(b"secret of a bench"), quarantine=Quarantine(0))
    await backend.start()
    await until(lambda: all(health.ready for health in backend.health()))
    try:
        yield backend, tritons
    finally:
        await backend.close()


async def until(condition: Callable[[], bool], seconds: float = 60) -> float:
    """Wait for a condition; returns how many seconds it took."""
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > seconds:
            raise TimeoutError(f"not within {seconds} s")
        await asyncio.sleep(0.01)
    return time.perf_counter() - started


def probes_sent() -> float:
    """The number of probes that this process has sent so far."""
    return REGISTRY.get_sample_value("gateway_probes_total") or 0.0


async def cost(number: int, aperture: int, rate: float, seconds: float) -> list[str]:
    """A row: the cost of a number of Tritons."""
    with simulated(number) as tritons:
        async with gateway(list(tritons.addresses), aperture=aperture) as (backend, members):
            before = psutil.Process().memory_info().rss
            probes, used = probes_sent(), cpu_seconds()
            await asyncio.sleep(seconds)
            idle_probes = (probes_sent() - probes) / seconds
            idle_cpu = (cpu_seconds() - used) / seconds
            client = Client(backend)
            probes, used = probes_sent(), cpu_seconds()
            await client.run(rate, seconds)
            busy = cpu_seconds() - used
            busy_probes = (probes_sent() - probes) / seconds
            after = psutil.Process().memory_info().rss
            return [
                str(number),
                str(len(members.replicas)),
                f"{1000 * busy / max(1, client.sent):.2f} ms",
                f"{100 * idle_cpu:.1f} %",
                f"{idle_probes:.1f}",
                f"{busy_probes:.1f}",
                f"{max(before, after) / 2**20:.0f} MiB",
                f"{client.percentile(99):.0f} ms",
            ]


async def scaling(number: int, rate: float) -> list[str]:
    """A row: the time until a new Triton has its share of the calls, and until a dead one has none."""
    with simulated(number + 1) as tritons:
        addresses = list(tritons.addresses[:-1])
        async with gateway(addresses, aperture=0) as (backend, _):
            client = Client(backend)
            load = asyncio.create_task(client.run(rate, 40))
            await asyncio.sleep(2)
            counts: Counter[str] = Counter()
            choose = Counting(counts)
            with mock.patch.object(pool, "power_of_two_choice", choose):
                new = tritons.addresses[-1]
                addresses.append(new)
                started = time.perf_counter()
                joined = None
                while joined is None and time.perf_counter() - started < 30:
                    counts.clear()
                    await asyncio.sleep(0.5)
                    total = sum(counts.values())
                    if total and counts[new] / total > 0.5 / (number + 1):
                        joined = time.perf_counter() - started
                failed = client.failed
                choose.last.clear()
                died = time.perf_counter()
                await asyncio.to_thread(tritons.send, "stop", 0)
                await asyncio.sleep(3)
                last = choose.last.get(tritons.addresses[0], died)
            load.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await load
            return [
                str(number),
                "not within 30 s" if joined is None else f"{joined:.1f} s",
                f"{max(0.0, last - died):.2f} s",
                str(client.failed - failed),
            ]


class Counting:
    """Power of two choices that records its choices and their times."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.last: dict[str, float] = {}

    def __call__(self, replicas: Sequence[Replica], generator: random.Random) -> Replica:
        """Choose a replica."""
        chosen = power_of_two_choice(replicas, generator)
        self.counts[chosen.address] += 1
        self.last[chosen.address] = time.perf_counter()
        return chosen


class RoundRobin:
    """Round robin, for comparison."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def __call__(self, replicas: Sequence[Replica], _: random.Random) -> Replica:
        """Choose the next replica."""
        return replicas[next(self._count) % len(replicas)]


async def one_slow(policy: str, slow: float, rate: float, seconds: float) -> list[str]:
    """A row: four Tritons, one of them slower."""
    choose = {"round robin": RoundRobin(), "less loaded of two": power_of_two_choice}[policy]
    with (
        simulated(4, seconds=0.04, slow=slow) as tritons,
        mock.patch.object(pool, "power_of_two_choice", choose),
    ):
        async with gateway(list(tritons.addresses), aperture=0) as (backend, _):
            client = Client(backend)
            await client.run(rate, seconds)
    good = sum(latency <= GOOD_SECONDS for latency in client.latencies)
    return [
        policy,
        f"{slow:g} ×",
        f"{client.percentile(50):.0f} ms",
        f"{client.percentile(99):.0f} ms",
        f"{good / seconds:.0f} of {client.sent / seconds:.0f}",
        str(client.failed),
    ]


@dataclass(frozen=True, slots=True)
class Overload:
    """Tritons that get more images than they can classify, from gateways with a limit each."""

    tritons: int = 2
    images_per_triton: int = 192
    """What a Triton can have in flight: 4 cores and a GPU, as in the chart's profile."""
    gateway_limit: int = 256
    rate: float = 150.0
    triton_seconds: float = 0.04
    """The time of one image; with two instances each, two Tritons classify 100 images a second."""


async def adding(gateways: int, overload: Overload) -> list[str]:
    """A row: the images in flight and waiting, and the time, at which each of two rules adds a Triton.

    The first divides by the limits of the gateways, the second by what the Tritons can have in flight.
    """
    limits = {
        "limits": TARGET_FULLNESS * overload.gateway_limit * gateways,
        "tritons": TARGET_FULLNESS * overload.images_per_triton * overload.tritons,
    }
    reached: dict[str, tuple[int, float]] = {}
    with simulated(overload.tritons, seconds=overload.triton_seconds) as tritons:
        async with contextlib.AsyncExitStack() as stack:
            clients = []
            for _ in range(gateways):
                backend, _ = await stack.enter_async_context(gateway(list(tritons.addresses), aperture=0))
                clients.append(Client(backend, timeout_seconds=120))
            started = time.perf_counter()
            load = [asyncio.create_task(client.run(overload.rate / gateways, 120)) for client in clients]
            while len(reached) < len(limits):
                await asyncio.sleep(CHECK_SECONDS)
                images = sum(client.outstanding for client in clients)
                now = time.perf_counter() - started
                reached |= {
                    rule: (images, now) for rule, limit in limits.items() if images > limit and rule not in reached
                }
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)
    capacity = overload.tritons * INSTANCES / overload.triton_seconds
    return [
        str(gateways),
        *(f"{reached[rule][0]:,} after {reached[rule][1]:.1f} s" for rule in limits),
        *(f"{reached[rule][0] / capacity:.1f} s" for rule in limits),
    ]


def cpu_seconds() -> float:
    """Processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(
    fleets: Annotated[str, typer.Option(help="Numbers of Tritons.")] = "1,4,16,64",
    rate: Annotated[float, typer.Option(help="Images a second.", min=1)] = 60.0,
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=1)] = 15.0,
) -> None:
    """Print the tables of docs/explanation/load-balancing.md."""
    numbers = [int(number) for number in fleets.split(",")]
    rows = []
    for number, aperture in [*((number, 8) for number in numbers), (max(numbers), 0)]:
        rows.append(asyncio.run(cost(number, aperture, rate, seconds)))
        print(f"bench | {rows[-1]}", file=sys.stderr)
    header = ["Tritons", "used", "CPU an image", "idle CPU", "probes a second, idle", "under load", "memory", "p99"]
    print(table(header, rows))
    rows = [asyncio.run(scaling(number, rate)) for number in numbers]
    header = ["Tritons", "a new one has its share after", "last call to a dead one after", "failed meanwhile"]
    print(table(header, rows))
    rows = [
        asyncio.run(one_slow(policy, slow, 0.6 * 150 * (1 + 0.2 / 3 * (slow > 1)), seconds))
        for slow in (1.0, 5.0)
        for policy in ("round robin", "less loaded of two")
    ]
    header = ["policy", "the fourth is slower", "p50", "p99", f"answers within {GOOD_SECONDS:g} s, a second", "failed"]
    print(table(header, rows))
    rows = [asyncio.run(adding(number, Overload())) for number in (1, 2, 5, 10)]
    header = ["gateways", "by their limits", "by the Tritons", "the last image waits for", "by the Tritons"]
    print(table(header, rows))


if __name__ == "__main__":
    typer.run(main)
