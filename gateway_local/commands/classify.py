"""`gateway classify`: a folder, an archive, a bucket or a list of images to a table of their classes."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.command_line.addresses import DEFAULT_GATEWAY, RunningGateway
from gateway.command_line.terminal import ApiKey, ServiceModel, print_status
from gateway_client.visible import visible

if TYPE_CHECKING:  # imported in the functions that need them, so that `gateway --help` is fast
    from gateway_client import Gateway
    from gateway_client.bulk.meter import Meter
    from gateway_client.bulk.run import BulkJob, FileRun
    from gateway_client.bulk.sources import Skipped, Sources

KEY_ADVICE = ": give it by --api-key KEY, or by the variable GATEWAY_API_KEY"
SECONDS_BETWEEN_LINES = 10.0


class Exit(IntEnum):
    """The exit codes."""

    OK = 0
    SOME_FAILED = 3
    INTERRUPTED = 130


def classify(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC…",
            help="Folders, images, archives, lists of paths (.txt), s3://bucket/prefix, or - for stdin.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", dir_okay=False, help="Output: .jsonl, .csv or .parquet."),
    ] = None,
    url: RunningGateway = DEFAULT_GATEWAY,
    api_key: ApiKey = None,
    model: ServiceModel = None,
    version: Annotated[int | None, typer.Option(help="Version to use; by default the one that answers first.")] = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="Classes to report for each image; by default the service's.", min=1),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Maximum number of concurrent requests.", min=1, max=64)] = 4,
    shard: Annotated[
        str | None,
        typer.Option(metavar="NUMBER/COUNT", help="Classify only this part of the images, such as 3/16."),
    ] = None,
    *,
    embeddings: Annotated[
        bool,
        typer.Option("--embeddings", help="Add each image's embedding, if the model has them."),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that ended early, and keep its rows.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")] = False,
) -> None:
    """Classify any number of images, with one row for each.

    Without --out the rows go to stdout as JSON lines. Exits with 0 if every image was classified, 3 if some failed, 130
    after Ctrl-C, 1 on any other fault.
    """
    from gateway.errors import UserError
    from gateway_client import Gateway, GatewayError
    from gateway_client.bulk import BulkError
    from gateway_client.bulk.run import BulkJob, FileRun, part_of
    from gateway_client.bulk.sources import read_shard

    if resume and (overwrite or out is None):
        raise typer.BadParameter("--resume needs --out and excludes --overwrite")
    if embeddings:
        top_k = top_k or 1  # for the columns of the best class
    parameters = {"model": model, "version": None if version is None else str(version), "top_k": top_k}
    if resume and out is not None and out.exists() and not part_of(out).exists():
        print_status(f"{visible(out)} is complete; --overwrite classifies all images again")
        raise typer.Exit(Exit.OK)
    run: FileRun | None = None
    try:
        job = BulkJob(tuple(sources), parameters, embeddings, None if shard is None else read_shard(shard))
        with ExitStack() as stack:
            stack.enter_context(_interrupted_by_sigterm())
            if out is not None:
                run = stack.enter_context(FileRun(job, out, resume=resume, overwrite=overwrite))
                if run.before:
                    print_status(f"rows from before: {run.before:,}")
            found = job.open() if run is None else run.sources
            gateway = stack.enter_context(Gateway(url, api_key, concurrency=concurrency))
            try:
                if run is None:
                    meter = _to_stdout(job, found, gateway)
                else:
                    run.run(gateway, _line_at_intervals())
                    meter = run.meter
            except BulkError:
                _print_skipped(found.skipped)
                raise
            rows = None if run is None else len(run.rows)
    except KeyboardInterrupt:
        print_status(f"stopped{_how_to_continue(run)}")
        raise typer.Exit(Exit.INTERRUPTED) from None
    except GatewayError as error:
        advice = KEY_ADVICE if error.code == "unauthorized" else ""
        raise UserError(f"{error.message.rstrip('.')}{advice}{_how_to_continue(run)}") from error
    except BulkError as error:
        raise UserError(f"{error}{_how_to_continue(run)}") from error
    if rows is not None:
        print_status(f"{visible(out)}: {_counted(rows, 'row')}; {meter.speed()}")
    raise typer.Exit(_summary(meter, found.skipped))


def _to_stdout(job: "BulkJob", found: "Sources", gateway: "Gateway") -> "Meter":
    """Print JSON lines, which show the progress themselves: only pauses are reported."""
    from gateway_client.bulk.meter import Meter
    from gateway_client.bulk.run import classified

    meter, show = Meter(), _line_at_intervals()

    def show_pause(meter: "Meter") -> None:
        if meter.waiting:
            show(meter)

    with closing(classified(job, gateway, found.images, meter, show_pause)) as rows:
        for row in rows:
            print(json.dumps(row), flush=True)  # noqa: T201  # results belong to stdout
    return meter


def _summary(meter: "Meter", skipped: "Skipped") -> Exit:
    _print_skipped(skipped)
    if meter.damaged:
        print_status(
            f"{_counted(meter.damaged, 'damaged image')}: some pixels are wrong; the column warning says which"
        )
    if not meter.failed:
        return Exit.OK
    print_status(f"{_counted(meter.failed, 'image')} failed:")
    for code, number in meter.codes.most_common():
        print_status(f"  {number:,} {code}")
    return Exit.SOME_FAILED


def _print_skipped(skipped: "Skipped") -> None:
    if skipped.number:
        print_status(
            f"skipped {_counted(skipped.number, 'file')} without an image's suffix, such as {skipped.example!r}; "
            "name others one by one, or in a list"
        )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _how_to_continue(run: "FileRun | None") -> str:
    if run is None or not run.rows.path.exists():
        return ""
    return f"; {visible(run.rows.path)} has the rows so far; --resume continues"


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature of a signal handler
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _line_at_intervals() -> Callable[["Meter"], None]:
    """The function that prints the progress, at most every SECONDS_BETWEEN_LINES."""
    last = time.monotonic()

    def show(meter: "Meter") -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print_status(meter.summary())

    return show
