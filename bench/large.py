"""`python -m bench.large`: photographs of 12 megapixels, alone and beside small ones, through Triton and the gateway.

`--beside ../before` measures another checkout's gateway and preprocessor as well, in turns.
"""

import http.client
import json
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from bench.http_load import HttpLoad
from bench.measurement import Measurement, accounted, percentile
from bench.photos import Photo, coffee, enlarged
from bench.remote import Remote
from bench.repository import repository
from bench.servers import Service, service
from bench.tables import Beside, Into, put, table
from gateway.triton.contract import DECODE_PARAMETER, ENSEMBLE_MODEL, EXACT, FAST, PREPROCESSOR

ALONE, BESIDE_LARGE, SMALL = 8, 4, 8
"""Numbers of clients: with large images alone; with large images beside small ones; with small images beside them."""
WARM_UP_SECONDS = 3.0
HEADER = ["", "12 MP images/s", "CPU an image", "times", "small beside large: p50", "times", "large meanwhile"]


@dataclass
class Candidate:
    """A service, the process that sends to it, and the measurements."""

    service: Service
    large: Remote
    small: Remote
    photos: dict[str, Photo]

    def __post_init__(self) -> None:
        self.alone: list[Measurement] = []
        self.mixed: list[Measurement] = []
        self.beside: list[Measurement] = []

    def run(self, seconds: float) -> None:
        """Measure once: large images alone, then both."""
        processes = {"all": [process for group in self.service.processes.values() for process in group]}
        photo = [self.photos["large"]]
        self.alone.append(accounted(processes, lambda: self.large.call("run", photo, seconds, ALONE, 1)))
        self.large.start("run", photo, seconds, BESIDE_LARGE, 1)
        self.mixed.append(self.small.call("run", [self.photos["small"]], seconds, SMALL, 1))
        self.beside.append(self.large.result())

    def p50(self) -> float:
        """Of a small picture beside large ones, in seconds."""
        return percentile([seconds for measurement in self.mixed for seconds in measurement.latencies_seconds], 50)


def main(
    beside: Beside = None,
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 10.0,
    rounds: Annotated[int, typer.Option(help="Each measures everything once; medians count.", min=1)] = 3,
    model: Annotated[str, typer.Option(help="As for python -m bench.")] = "mobilenet-v3-small",
    into: Into = None,
) -> None:
    """Print the rate of large images, and the latency of small ones beside them."""
    with ExitStack() as stack:
        candidates = {decode: stack.enter_context(_candidate(model, decode, None)) for decode in (EXACT, FAST)}
        for tree in beside or []:
            candidates[tree.name] = stack.enter_context(_candidate(model, EXACT, tree))
        for number in range(rounds):
            for name, candidate in candidates.items():
                candidate.run(seconds)
                rate, p50 = candidate.alone[-1].rate, percentile(candidate.mixed[-1].latencies_seconds, 50)
                print(f"bench | round {number + 1}: {name} {rate:.1f}/s, {1e3 * p50:.0f} ms", file=sys.stderr)
        text = table(HEADER, _rows(candidates))
    print(text)
    if into is not None:
        put(into, "bench.large", text)


@contextmanager
def _candidate(model: str, decode: str, tree: Path | None) -> Iterator[Candidate]:
    changes = [f"{ENSEMBLE_MODEL}.parameters.{DECODE_PARAMETER}.string_value={decode}"]
    with repository(model, changes, _say) as models:
        if tree is not None:
            shutil.rmtree(models / PREPROCESSOR)
            shutil.copytree(tree / "triton_models" / PREPROCESSOR, models / PREPROCESSOR)
        with (
            service(models, cache_bytes=0, say=_say, tree=tree) as running,
            Remote(HttpLoad, running.http_url) as large,
            Remote(HttpLoad, running.http_url) as small,
        ):
            photos = {"small": coffee(), "large": enlarged(coffee(), 4000, 3000)}
            labelled = {name: replace(each, label=_label(running.http_url, each.data)) for name, each in photos.items()}
            large.call("run", [labelled["large"]], WARM_UP_SECONDS, ALONE, 1)
            # All of the gateway's decoders have started by now, so they are counted.
            gateway = running.processes["gateway"][0]
            running.processes["gateway"][:] = [gateway, *gateway.children(recursive=True)]
            yield Candidate(running, large, small, labelled)


def _label(url: str, jpeg: bytes) -> str:
    """What the service itself sees: a fast decoder may see something else where two classes are alike."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    connection.request("POST", "/predict", jpeg, {"Content-Type": "image/jpeg"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return str(answer["results"][0]["predictions"][0]["label"])


def _rows(candidates: dict[str, Candidate]) -> Iterator[list[str]]:
    first = list(candidates.values())[-1]
    for name, each in candidates.items():
        faster = [mine.rate / theirs.rate for mine, theirs in zip(each.alone, first.alone, strict=True)]
        yield [
            name,
            f"{statistics.median(measurement.rate for measurement in each.alone):.1f}",
            f"{statistics.median(measurement.cpu_milliseconds()['all'] for measurement in each.alone):.0f} ms",
            f"{statistics.median(faster):.2f}",
            f"{1e3 * each.p50():.0f} ms",
            f"{each.p50() / first.p50():.2f}",
            f"{statistics.median(measurement.rate for measurement in each.beside):.1f}/s",
        ]


def _say(text: str) -> None:
    print(f"bench | {text}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
