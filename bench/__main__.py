"""`make bench`: images per second of the service and of its parts, as shares of the bare limit."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bench import photos as photographs
from bench.measurement import Measurement, WrongAnswer
from bench.parts import TITLES, Limit, Part, limit_processes, parts_of
from bench.peers import measure as compared
from bench.photos import NoPhotos, Photo
from bench.remote import RemoteFailed
from bench.report import Report
from bench.repository import RECIPES, NoSuchSetting, repository
from bench.servers import GatewayFailed, service
from bench.tables import Into, NoMarkers, put
from gateway.errors import UserError

CACHE_BYTES = 256 * 2**20
WARM_UP_SECONDS = 3.0
MAX_ATTEMPTS = 10
KNOWN = {("efficientnet-lite0", "coffee.jpg"): "espresso"}
"""The label that a trained model must predict; any other means that the limit itself is computed wrongly."""

FAILURES = (
    UserError, NoPhotos, NoSuchSetting, GatewayFailed, RemoteFailed, WrongAnswer, FileNotFoundError, NoMarkers,
)  # fmt: skip
"""Errors that are printed as one line, without a traceback."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def say(text: str) -> None:
    """A line of progress on stderr; stdout is for the tables."""
    typer.echo(f"bench | {text}", err=True)


@app.command()
def main(
    model: Annotated[str, typer.Option(help=f"{', '.join(RECIPES)}, or a model.pt.")] = "mobilenet-v3-small",
    images: Annotated[
        Path | None, typer.Option(help="Folder of photographs.", exists=True, file_okay=False, show_default="one photo")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.1)] = 10.0,
    concurrency: Annotated[int, typer.Option(help="Requests in flight in (b), (c) and (e).", min=1)] = 32,
    rounds: Annotated[int, typer.Option(help="Every round measures each part once; results are medians.", min=1)] = 5,
    quiet: Annotated[
        float | None,
        typer.Option(
            help="Measure a round again if other processes use more cores than this.", min=0.0, show_default="never"
        ),
    ] = None,
    parts: Annotated[str, typer.Option(help="Parts to measure, such as acd.")] = "abcde",
    processes: Annotated[
        int | None, typer.Option(help="Bare loops in (a).", min=1, show_default="one for each core")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of a config.pbtxt: classifier.instance_group.count=2; repeatable."),
    ] = None,
    peers: Annotated[  # noqa: FBT002  # an option of the command line
        bool, typer.Option("--peers", help="Measure other ways to serve the network instead, each alone.")
    ] = False,
    into: Into = None,
) -> None:
    """Measure five ways to have photographs classified, in turns, and print each as a share of the bare limit (a).

    a: decode, resize, normalise and forward in a loop, a process on each core, no server. b: gRPC straight to Triton's
    ensemble, one image a call. c: POST /predict with one file. d: POST /predict with 200 files. e: like c, always with
    the same photograph and Triton's response cache, which is off in b to d.

    --peers has LitServe and a naive FastAPI service beside (c), installed apart. --write puts the table of either into
    a document, where it has the place of the one for that model.

    Every answer's label is checked. GATEWAY_ variables reach the gateway.
    """
    cores = len(os.sched_getaffinity(0))
    unknown = set(parts) - set(TITLES)
    if unknown:
        raise typer.BadParameter(f"there is no part {''.join(sorted(unknown))}: {', '.join(TITLES)}")
    try:
        photos = photographs.load(images)
        if peers:
            with repository(model, changes or [], say) as models:
                text = compared.report(compared.measure(models, photos, seconds, rounds, concurrency, say))
            print(text)
            if into is not None:
                put(into, f"bench of {model} beside peers", text)
            return
        with measured_parts(model, photos, concurrency, parts, processes or cores, changes or []) as measured:
            measurements = measure(measured, seconds, rounds, quiet)
    except FAILURES as exc:
        typer.secho(f"error: {exc}", err=True, fg="red")
        raise typer.Exit(1) from exc
    text = Report(seconds, cores, measurements).markdown()
    print(text)
    if into is not None:
        put(into, f"bench of {model}", text)


@contextmanager
def measured_parts(
    model: str, photos: list[Photo], concurrency: int, parts: str, processes: int, changes: list[str]
) -> Iterator[dict[str, Part]]:
    """The requested parts, with everything that they need running and warmed up."""
    with ExitStack() as stack:
        models = stack.enter_context(repository(model, changes, say))
        say(f"(a) warming up {processes} bare processes")
        loops = limit_processes(models, processes)
        for loop in loops:
            stack.enter_context(loop)
        limit = Limit(loops, photos)
        say(
            f"(a) is fastest with batches of {limit.batch_size}; labels: {', '.join(p.label for p in limit.photos[:5])}"
        )
        for photo in limit.photos:
            known = KNOWN.get((model, photo.name), photo.label)
            if photo.label != known:
                raise WrongAnswer(f"{photo.name} should be {known!r}, and the bare loop predicts {photo.label!r}")
        say("starting Triton and the gateway, without the cache and with it")
        uncached = stack.enter_context(service(models, cache_bytes=0, say=say))
        cached = stack.enter_context(service(models, cache_bytes=CACHE_BYTES, say=say)) if "e" in parts else uncached
        others, senders = parts_of(uncached, cached, limit.photos, concurrency)
        for sender in senders:
            stack.enter_context(sender)
        every: dict[str, Part] = {"a": limit, **others}
        measured = {name: every[name] for name in sorted(set(parts))}
        for name, part in measured.items():
            say(f"warming up ({name}) {TITLES[name]}")
            part(WARM_UP_SECONDS)
        yield measured


def measure(parts: dict[str, Part], seconds: float, rounds: int, quiet: float | None) -> dict[str, list[Measurement]]:
    """The measurements of each part, round by round, so that other load on the machine affects all parts alike.

    With `quiet` a round in which others filled more cores than that is thrown away, as long as there are no more than
    MAX_ATTEMPTS times `rounds` in all.
    """
    kept: list[dict[str, Measurement]] = []
    attempts = MAX_ATTEMPTS * rounds
    while len(kept) < rounds:
        attempts -= 1
        measurements = {name: part(seconds) for name, part in parts.items()}
        others = max(measurement.others_cores for measurement in measurements.values())
        disturbed = quiet is not None and others > quiet and attempts >= rounds - len(kept)
        if not disturbed:
            kept.append(measurements)
        rates = "  ".join(f"{name} {measurement.rate:.0f}/s" for name, measurement in measurements.items())
        again = f" (others filled {others:.1f} cores: again)" if disturbed else ""
        say(f"round {len(kept)} of {rounds}: {rates}{again}")
    return {name: [measurements[name] for measurements in kept] for name in parts}


if __name__ == "__main__":
    sys.exit(app())
