"""`gateway classify`: a folder, an archive, a bucket or a table of images to a table of their classes."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway_cli.addresses import gateway_url
from gateway_cli.terminal import ApiKey, Repository, ServiceModel, print_status
from gateway_client.visible import visible
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

if TYPE_CHECKING:  # imported in the functions that need them, so that `gateway --help` is fast
    from rich.table import Table

    from gateway_client import Gateway
    from gateway_client.bulk.meter import Meter
    from gateway_client.bulk.partitions import PartitionedRun
    from gateway_client.bulk.run import BulkJob
    from gateway_client.bulk.sources import LeftOut

KEY_ADVICE = ": give it by --api-key KEY, or by the variable TRITON_GATEWAY_KEY"
TABLE_ROWS = 50
FILE_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".parquet")
JSON_LINES = {".jsonl", ".ndjson"}


class PartFormat(StrEnum):
    """The format of the files in a folder."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"


class Exit(IntEnum):
    """The exit codes."""

    OK = 0
    SOME_FAILED = 3
    GAVE_UP = 4
    INTERRUPTED = 130


def classify(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC…",
            help="Folders, globs, images, tar or zip files, tables (.csv, .jsonl, .parquet) with a column of paths, "
            "lists of paths (.txt), s3://bucket/prefix, or - for paths on stdin.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write the rows to: .jsonl, .csv or .parquet. Or a folder for many files: out/, "
            "s3://bucket/out/.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--gateway",
            metavar="URL",
            help="A running service; without it, one is started for this run.",
            show_default=False,
            callback=gateway_url,
        ),
    ] = None,
    api_key: ApiKey = None,
    model: ServiceModel = None,
    version: Annotated[
        int | None, typer.Option(help="Version to use; by default the one in use.", show_default=False)
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="Classes to report for each image; by default the service's.", min=1, show_default=False),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Report only classes with at least this score.", min=0, max=1, show_default=False),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Report only these classes, separated by commas.", show_default=False)
    ] = None,
    frames: Annotated[
        str | None,
        typer.Option(
            help="Report frames of animated files, too: a number, all, or every:1s; for JSON lines.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            help="The table's column with the paths; by default path, file, filename, image or url.", show_default=False
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(help="Maximum number of concurrent requests; fewer while the service is busy.", min=1, max=64)
    ] = 4,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER/COUNT",
            help="Classify only this part of the images, such as 3/16: each of 16 processes takes one.",
            show_default=False,
        ),
    ] = None,
    rows_per_file: Annotated[
        int, typer.Option(help="For a folder: rows of each of its files.", min=1, max=10_000_000)
    ] = 10_000,
    file_format: Annotated[
        PartFormat, typer.Option("--format", help="For a folder: the format of its files.")
    ] = PartFormat.PARQUET,
    max_failures: Annotated[
        int | None,
        typer.Option(help="Stop when more images than this have failed.", min=0, show_default="never"),
    ] = None,
    *,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings", help="Add each image's embedding; the model must have been added with --embeddings."
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that ended early, and keep its rows.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")] = False,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Classify any number of images, with one row for each.

    Without --out the rows go to stdout: a table on a terminal, JSON lines elsewhere. Exits with 0 if every image was
    classified, 3 if some failed, 4 if more failed than --max-failures, 130 after Ctrl-C, 1 on any other fault.
    """
    from gateway.errors import UserError
    from gateway_cli.own_service import own_service
    from gateway_client import Gateway, GatewayError
    from gateway_client.bulk.partitions import PartitionedRun, is_folder
    from gateway_client.bulk.remote import is_url
    from gateway_client.bulk.run import BulkJob
    from gateway_client.bulk.shards import read_shard
    from gateway_client.errors import Unauthorized

    if resume and (overwrite or out is None):
        raise typer.BadParameter("--resume needs --out and excludes --overwrite")
    if out is not None and is_url(out) and out.lower().endswith(FILE_SUFFIXES):
        raise typer.BadParameter(f"--out {out}: in a bucket the output is a folder of files, such as s3://bucket/out/")
    suffix = None if out is None else f".{file_format.value}" if is_folder(out) else Path(out).suffix.lower()
    if frames is not None and suffix is not None and suffix not in JSON_LINES:
        how = "--format jsonl" if is_folder(str(out)) else f"such as {Path(str(out)).with_suffix('.jsonl')}"
        raise typer.BadParameter(f"--frames needs an output of JSON lines, {how}")
    parameters: dict[str, Any] = {"model": model, "version": version, "top_k": top_k, "threshold": threshold}
    if frames is not None:
        parameters["frames"] = frames
    if labels:
        parameters["labels"] = [labels]
    if embeddings:
        if threshold is not None or labels:
            raise typer.BadParameter("--embeddings excludes --threshold and --labels")
        # At least one class, for the columns of the best class.
        parameters = {"model": model, "version": version, "top_k": top_k or 1}
    part = None if shard is None else read_shard(shard)
    job = BulkJob(tuple(sources), column, parameters, max_failures, embeddings, part)
    with ExitStack() as stack:
        stack.enter_context(_interrupted_by_sigterm())
        try:
            if out is None:
                run = _to_stdout(job)
            elif is_folder(out):
                files = PartitionedRun(
                    job, out, resume=resume, overwrite=overwrite, rows_per_file=rows_per_file, suffix=str(suffix)
                )
                run = _to_folder(stack.enter_context(files))
            else:
                run = _to_file(job, Path(out), stack, resume=resume, overwrite=overwrite)
            address = url or stack.enter_context(own_service(model_repository, print_status))
            gateway = stack.enter_context(Gateway(address, api_key, concurrency=concurrency))
            code = run(gateway)
        except KeyboardInterrupt:
            print_status(f"stopped{_how_to_continue(out)}")
            code = Exit.INTERRUPTED
        except GatewayError as error:
            advice = KEY_ADVICE if isinstance(error, Unauthorized) else ""
            raise UserError(f"{error.message.rstrip('.')}{advice}{_how_to_continue(out)}") from error
    raise typer.Exit(code)


def _to_file(
    job: "BulkJob", out: Path, stack: ExitStack, *, resume: bool, overwrite: bool
) -> Callable[["Gateway"], Exit]:
    from gateway.errors import UserError
    from gateway_client.bulk import BulkError
    from gateway_client.bulk.meter import counted, duration
    from gateway_client.bulk.run import FileRun, NoImages, TooManyFailures

    run = stack.enter_context(FileRun(job, out, resume=resume, overwrite=overwrite))
    if run.meter.before:
        print_status(f"rows from before: {run.meter.before:,}")
    if run.journal.dropped:
        print_status(
            f"dropped {counted(run.journal.dropped, 'row')} of images with several rows; images whose rows differ are "
            "classified again"
        )
    if run.journal.torn:
        print_status("dropped the last line, which is incomplete")

    def work(gateway: "Gateway") -> Exit:
        try:
            with shown() as show:
                run.run(gateway, show)
        except TooManyFailures as exc:
            print_status(f"{exc}{_how_to_continue(str(out), 'with a larger --max-failures')}")
            return Exit.GAVE_UP
        except NoImages:
            _print_left_out(run.sources.left_out)
            raise
        except (UserError, BulkError) as error:
            raise UserError(f"{error}{_how_to_continue(str(out))}") from error
        meter = run.meter
        if run.journal.foreign:
            print_status(f"kept {counted(run.journal.foreign, 'row')} of images that are not among the sources")
        print_status(
            f"{visible(out)}: {counted(meter.before + meter.done, 'row')}; {counted(meter.done, 'image')} in "
            f"{duration(meter.seconds)}, {meter.done / max(meter.seconds, 1e-9):,.1f}/s"
        )
        return _summary(meter, run.sources.left_out)

    return work


def _to_folder(run: "PartitionedRun") -> Callable[["Gateway"], Exit]:
    from gateway.errors import UserError
    from gateway_client.bulk import BulkError
    from gateway_client.bulk.meter import counted, duration
    from gateway_client.bulk.run import NoImages, TooManyFailures

    def work(gateway: "Gateway") -> Exit:
        try:
            with shown() as show:
                run.run(gateway, show)
        except TooManyFailures as exc:
            print_status(f"{exc}{_how_to_continue(run.out, 'with a larger --max-failures')}")
            return Exit.GAVE_UP
        except NoImages:
            _print_left_out(run.sources.left_out)
            raise
        except (UserError, BulkError) as error:
            raise UserError(f"{error}{_how_to_continue(run.out)}") from error
        meter = run.meter
        if meter.before:
            print_status(f"rows from before: {meter.before:,}")
        print_status(
            f"{visible(run.out)}: {counted(meter.before + meter.done, 'row')}; {counted(meter.done, 'image')} in "
            f"{duration(meter.seconds)}, {meter.done / max(meter.seconds, 1e-9):,.1f}/s"
        )
        return _summary(meter, run.sources.left_out)

    return work


def _to_stdout(job: "BulkJob") -> Callable[["Gateway"], Exit]:
    from gateway_client.bulk.meter import Meter
    from gateway_client.bulk.run import NoImages, TooManyFailures, rows
    from gateway_client.bulk.sources import Sources

    found = Sources(job.sources, column=job.column, shard=job.shard)

    def work(gateway: "Gateway") -> Exit:
        meter = Meter()
        try:
            if sys.stdout.isatty():
                with shown(transient=True) as show, closing(rows(job, gateway, found.images, meter, show)) as answers:
                    table, left = _table(answers)
                _print_table(table, left)
            else:
                with closing(rows(job, gateway, found.images, meter, only_waits())) as answers:
                    for row in answers:
                        _print_line(row)
        except TooManyFailures as exc:
            print_status(str(exc))
            return Exit.GAVE_UP
        except NoImages:
            _print_left_out(found.left_out)
            raise
        return _summary(meter, found.left_out)

    return work


def _print_line(row: dict[str, Any]) -> None:
    from gateway.errors import UserError

    try:
        print(json.dumps(row), flush=True)  # noqa: T201  # results belong to stdout
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        raise
    except OSError as exc:
        raise UserError(f"the rows cannot be written: {exc.strerror or exc}") from exc


def _table(answers: Iterator[dict[str, Any]]) -> tuple["Table", int]:
    """Build a table of the first rows, and count the others."""
    from rich.table import Table

    table = Table(box=None)
    for name in ("image", "label", "score", "error"):
        table.add_column(name, overflow="fold")
    number = 0
    for row in answers:
        number += 1
        if number <= TABLE_ROWS:
            best = "" if row["score"] is None else f"{row['score']:.3f}"
            cells = row["path"], row["label"] or "", best, row["message"] or ""
            table.add_row(*cells)
    return table, max(0, number - TABLE_ROWS)


def _print_table(table: "Table", left: int) -> None:
    from gateway_local.console import PlainConsole

    PlainConsole().print(table)
    if left:
        print_status(f"{left:,} more are not shown: use --out FILE to keep them all")


def _summary(meter: "Meter", left_out: "LeftOut") -> Exit:
    from gateway_client.bulk.meter import counted

    _print_left_out(left_out)
    if meter.damaged:
        print_status(f"{counted(meter.damaged, 'damaged image')}: some pixels are wrong; the column warning says which")
    if not meter.failed:
        return Exit.OK
    print_status(f"{counted(meter.failed, 'image')} failed:")
    for code, number in meter.codes.most_common():
        print_status(f"  {number:,} {code}")
    return Exit.SOME_FAILED


def _print_left_out(left_out: "LeftOut") -> None:
    from gateway_client.bulk.meter import counted

    if left_out.number:
        files = counted(left_out.number, "file")
        print_status(
            f"skipped {files} without an image's suffix, such as {left_out.example!r}; a glob selects files of any name"
        )
    if left_out.folders:
        folders = counted(left_out.folders, "folder")
        print_status(f"skipped {folders} that a link leads to a second time, such as {left_out.folder!r}")


def _how_to_continue(out: str | None, how: str = "") -> str:
    from gateway_client.bulk.journal import journal_of
    from gateway_client.bulk.partitions import is_folder

    if out is not None and is_folder(out):
        return f"; the files in {visible(out)} are whole; {' '.join(filter(None, ('--resume', how)))} continues"
    if out is None or not (part := journal_of(Path(out))).exists() or not part.stat().st_size:
        return ""
    return f"; {visible(part)} has the rows so far; {' '.join(filter(None, ('--resume', how)))} continues"


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature of a signal handler
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def shown(*, transient: bool = False) -> Iterator[Callable[["Meter"], None]]:
    """A progress bar on a terminal, removed at the end if `transient`; elsewhere a line every SECONDS_BETWEEN_LINES."""
    if sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, TextColumn

        from gateway_local.console import PlainConsole

        columns = BarColumn(), TextColumn("{task.description}", markup=False)
        with Progress(*columns, console=PlainConsole(stderr=True), transient=transient) as bar:
            task = bar.add_task("starting", total=None)

            def show(meter: "Meter") -> None:
                bar.update(
                    task, total=meter.total, completed=meter.before + meter.done, description=visible(meter.summary())
                )

            yield show
        return
    yield _line_at_intervals()


def _line_at_intervals() -> Callable[["Meter"], None]:
    last = time.monotonic()

    def show(meter: "Meter") -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print_status(meter.summary())

    return show


def only_waits() -> Callable[["Meter"], None]:
    """For rows on stdout, which show the progress themselves: report only pauses and their reason."""
    show = _line_at_intervals()
    return lambda meter: show(meter) if meter.waiting else None
