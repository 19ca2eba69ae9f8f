"""`make bench`: images per second of the service and of its parts, or of other servers of the same network."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from bench import photos as photographs
from bench.candidates import SIZES
from bench.measurement import WrongAnswer, in_turns
from bench.output import NoMarkers, markers, progress, put
from bench.peers import measure as compared
from bench.photos import NoPhotos
from bench.repository import RECIPES, repository
from bench.services import ServiceFailed
from gateway.errors import UserError

FAILURES = (UserError, NoPhotos, ServiceFailed, WrongAnswer, FileNotFoundError, NoMarkers)
"""Errors that are printed as one line, without a traceback."""
LIGHT_MODEL = "mobilenet-v3-small"
SUMMARY, BRIEF = "bench --peers", "bench --peers in brief"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(RECIPES)}, or a model.pt; repeatable.", show_default=LIGHT_MODEL),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of photographs.", exists=True, file_okay=False, show_default="one photo")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.1)] = 10.0,
    concurrency: Annotated[
        str, typer.Option(help="Requests in flight in (b), (c) and (e); with --peers several, such as 1,4,32.")
    ] = "32",
    rounds: Annotated[int, typer.Option(help="Every round measures each part once; results are medians.", min=1)] = 5,
    parts: Annotated[str, typer.Option(help="Parts to measure, such as acd.")] = "abcde",
    processes: Annotated[
        int | None, typer.Option(help="Bare loops in (a).", min=1, show_default="one for each core")
    ] = None,
    *,
    peers: Annotated[bool, typer.Option("--peers", help="Measure other servers of the network beside (c).")] = False,
    files: Annotated[int, typer.Option(help="With --peers: also one request with this number of files.", min=0)] = 0,
    megapixels: Annotated[int, typer.Option(help="With --peers: also photographs of 12, 24 or 49 megapixels.")] = 0,
    into: Annotated[
        list[Path] | None, typer.Option("--write", help="Put the tables into this document as well; repeatable.")
    ] = None,
) -> None:
    """Measure five ways to have photographs classified, in turns, and print each as a share of the bare limit (a).

    a: decode, resize, normalise and forward in a loop, a process on each core, no server. b: gRPC straight to Triton's
    ensemble, one image a call. c: POST /predict with one file. d: POST /predict with 200 files. e: like c, always with
    the same photograph and Triton's response cache, which is off in b to d.

    --peers measures (c) in turns with LitServe and a naive FastAPI service, each with torch and with ONNX Runtime, and
    with the naive ones as people write them, with default threads; they are installed apart. --write puts the table of
    a model between the markers for that model, and the summaries of --peers between their own.

    Every answer's label is checked. GATEWAY_ variables reach the service.
    """
    models = model or [LIGHT_MODEL]
    in_flight = _numbers(concurrency)
    if unknown := set(parts) - set("abcde"):
        raise typer.BadParameter(f"there is no part {''.join(sorted(unknown))}: a, b, c, d, e")
    if not peers and (len(in_flight) > 1 or files or megapixels):
        raise typer.BadParameter("several numbers of --concurrency, --files and --megapixels need --peers")
    if megapixels not in SIZES:
        raise typer.BadParameter(f"--megapixels {megapixels} is none of {', '.join(map(str, SIZES))}")
    if peers and images is not None:
        raise typer.BadParameter("--peers sends its own photographs, and takes no --images")
    try:
        if peers:
            loads = compared.loads(in_flight, files, megapixels)
            _check_documents(into or [], [SUMMARY, BRIEF, *(f"{SUMMARY} {each}" for each in models)])
            measured = {}
            for each in models:
                with repository(each, progress) as path:
                    measured[each] = compared.measure(path, loads, seconds, rounds, progress)
                _publish(compared.report(measured[each]), into or [], f"{SUMMARY} {each}")
            _publish(compared.summary(measured), into or [], SUMMARY)
            _publish(compared.brief(measured[models[0]]), into or [], BRIEF)
            return
        from bench.parts import parts_of, report  # imports torch, which --help does without

        cores = len(os.sched_getaffinity(0))
        photos = photographs.load(images)
        for each in models:
            _check_documents(into or [], [f"bench of {each}"])
            with (
                repository(each, progress) as path,
                parts_of(each, path, photos, parts, in_flight[0], processes or cores, progress) as chosen,
            ):
                text = report(in_turns(chosen, seconds, rounds, progress), seconds, cores)
            _publish(text, into or [], f"bench of {each}")
    except FAILURES as exc:
        typer.secho(f"error: {exc}", err=True, fg="red")
        raise typer.Exit(1) from exc


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise typer.BadParameter(f"--concurrency {text} is not a list of numbers such as 1,4,32")
    return numbers


def _check_documents(documents: list[Path], commands: list[str]) -> None:
    """Raise NoMarkers, before the measurement, for a document that has the markers of none of the commands."""
    for document in documents:
        text = document.read_text()
        if not any(markers(command)[0] in text for command in commands):
            raise NoMarkers(
                f"{document} has none of the lines {', '.join(markers(command)[0].strip() for command in commands)}"
            )


def _publish(text: str, documents: list[Path], command: str) -> None:
    """Print a table, and put it into each document that has its markers."""
    typer.echo(text)
    for document in documents:
        if markers(command)[0] in document.read_text():
            put(document, command, text)


if __name__ == "__main__":
    sys.exit(app())
