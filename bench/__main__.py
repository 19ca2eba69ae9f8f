"""`make bench`: images per second of the service and of its network in a bare loop, or of other servers."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from bench.candidates import OURS, Load, Subject, compare, cost_table, started
from bench.measurement import WrongAnswer
from bench.output import NoMarkers, markers, progress, put
from bench.peers import measure as peers_of
from bench.photos import coffee
from bench.remote import Remote
from bench.repository import RECIPES, repository
from bench.services import ServiceFailed, gateway_up
from gateway.errors import UserError

FAILURES = (UserError, ServiceFailed, WrongAnswer, FileNotFoundError, NoMarkers)
"""Errors that are printed as one line, without a traceback."""
LIGHT_MODEL = "mobilenet-v3-small"
SUMMARY, BRIEF = "bench --peers", "bench --peers in brief"
BARE = "bare loop"
LOADS = [Load("32 in flight", 32), Load("200 files in one request", 1, 200)]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(RECIPES)}, or a model.pt; repeatable.", show_default=LIGHT_MODEL),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.1)] = 10.0,
    rounds: Annotated[int, typer.Option(help="Every round measures everything once; results are medians.", min=1)] = 5,
    *,
    peers: Annotated[bool, typer.Option("--peers", help="Compare with other servers of the network.")] = False,
    into: Annotated[
        list[Path] | None, typer.Option("--write", help="Put the tables into this document as well; repeatable.")
    ] = None,
) -> None:
    """Measure POST /predict as a share of the bare limit: a process on each core that decodes, resizes and classifies.

    --peers measures the service in turns with LitServe and a naive FastAPI service instead, each with torch and with
    ONNX Runtime, and the naive ones also as people write them, with default threads; they are installed apart. --write
    puts each table between its markers.

    Every answer's label is checked. GATEWAY_ variables reach the service.
    """
    models = model or [LIGHT_MODEL]
    try:
        _check_documents(into or [], [SUMMARY, BRIEF] if peers else [f"bench of {each}" for each in models])
        measured = {}
        for each in models:
            with repository(each, progress) as path:
                if not peers:
                    _publish(_limit(path, seconds, rounds), into or [], f"bench of {each}")
                    continue
                measured[each] = peers_of.measure(path, seconds, rounds, progress)
                typer.echo(cost_table(measured[each], OURS))
        if peers:
            _publish(peers_of.summary(measured), into or [], SUMMARY)
            _publish(peers_of.brief(measured[models[0]]), into or [], BRIEF)
    except FAILURES as exc:
        typer.secho(f"error: {exc}", err=True, fg="red")
        raise typer.Exit(1) from exc


def _limit(path: Path, seconds: float, rounds: int) -> str:
    """The table of the service with a model repository, and of bare processes."""
    from bench.limit import Limit, Loop  # imports torch, which --help does without

    with ExitStack() as stack:
        processes = [stack.enter_context(Remote(Loop, path)) for _ in os.sched_getaffinity(0)]
        limit = Limit(processes, coffee())
        progress(f"the bare loop is fastest with batches of {limit.batch_size}")
        running = started(stack, {OURS: gateway_up(path)}, progress)
        label = running[OURS].photo().label
        if label != limit.label:
            raise WrongAnswer(f"the service predicts {label!r}, and the bare loop {limit.label!r}")
        subjects: dict[str, Subject] = {BARE: limit, **running}
        return cost_table(compare(subjects, LOADS, seconds, rounds, progress), BARE)


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
