"""`gateway stream`: classifies a video, a camera or a network stream over time."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.command_line.addresses import DEFAULT_GATEWAY, RunningGateway
from gateway.command_line.terminal import ApiKey, ServiceModel, emit, print_status
from gateway.errors import UserError
from gateway_client.csv_cells import csv_line

if TYPE_CHECKING:
    from gateway_local.commands.follow import FrameAnswer

INTERRUPTED = 130


def stream(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A video file, the number of a camera, an rtsp:// or https:// address, or - for standard input.",
        ),
    ],
    url: RunningGateway = DEFAULT_GATEWAY,
    api_key: ApiKey = None,
    model: ServiceModel = None,
    smoothing: Annotated[
        str | None,
        typer.Option(help="exponential or none; by default exponential.", show_default=False),
    ] = None,
    fps: Annotated[
        float | None, typer.Option(help="Maximum frames per second; by default all.", min=0.01, show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write the rows to: .jsonl or .csv.", dir_okay=False, show_default=False
        ),
    ] = None,
) -> None:
    """Classify a video over time; a stateful model smooths the labels over the sequence.

    Without --out, each change of the label is a line on stdout. Of files every frame gets a result; of cameras and
    network streams, frames that arrive too fast are dropped.
    """
    from gateway_local.commands import capture, follow

    if out is not None and out.suffix not in {".jsonl", ".csv"}:
        print_status(f"{out} should end in .jsonl or .csv")
        raise typer.Exit(2)
    drop = "oldest" if capture.is_live(source) else "never"
    parameters = {"model": model, "smoothing": smoothing, "top_k": 1, "drop": drop}
    meter, failure = _Meter(), ""
    try:
        # The first frame is read before the service is asked, so that its error is reported first.
        frames = capture.frames(source, fps)
        frames = chain(list(islice(frames, 1)), frames)
        answers = meter.watch(follow.follow(url, frames, parameters, api_key))
        with ExitStack() as stack:
            _rows(answers, None if out is None else _writer(out, follow.FRAME_COLUMNS, stack))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except UserError as exc:
        failure = str(exc)
    finally:
        meter.finish()
    if failure:
        print_status(failure)
        raise typer.Exit(1)


def _rows(answers: Iterable["FrameAnswer"], write: Callable[[dict[str, Any]], None] | None) -> None:
    """Write a row for each frame, or print a line for each change of the label."""
    shown = None
    for answer in answers:
        if write is not None:
            write(answer.row)
        elif not answer.error and answer.label != shown:
            shown = answer.label
            emit(f"{clock(answer.seconds)}  {answer.label}  {answer.score:.2f}")


def _writer(out: Path, names: Sequence[str], stack: ExitStack) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes and flushes each row."""
    file = stack.enter_context(out.open("w", encoding="utf-8", newline=""))
    is_csv = out.suffix == ".csv"
    if is_csv:
        file.write(csv_line(names))

    def write(row: dict[str, Any]) -> None:
        file.write(csv_line(row[name] for name in names) if is_csv else json.dumps(row) + "\n")
        file.flush()

    return write


class _Meter:
    """Counts the results: position, speed, and frames that were dropped or failed."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._frames = self._dropped = self._failed = 0
        self._seconds = 0.0

    def watch(self, answers: Iterable["FrameAnswer"]) -> Iterator["FrameAnswer"]:
        """Count the results, and yield them unchanged."""
        for answer in answers:
            self._frames += 1
            self._dropped += answer.dropped
            self._failed += bool(answer.error)
            self._seconds = answer.seconds
            yield answer

    def finish(self) -> None:
        """Print the totals, if there are any."""
        if self._frames:
            rate = self._frames / max(time.monotonic() - self._begun, 1e-6)
            line = f"{clock(self._seconds)}: {self._frames} frame{'s' * (self._frames != 1)}, {rate:.1f}/s"
            counts = ((self._dropped, "dropped"), (self._failed, "failed"))
            print_status(line + "".join(f", {count} {state}" for count, state in counts if count))


def clock(seconds: float) -> str:
    """Format seconds as H:MM:SS.s."""
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes) // 60}:{int(minutes) % 60:02}:{rest:04.1f}"
