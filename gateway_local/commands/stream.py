"""`gateway stream`: classifies a video, a camera or a network stream over time."""

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.command_line.addresses import DEFAULT_GATEWAY, RunningGateway
from gateway.command_line.terminal import ApiKey, ServiceModel, emit

if TYPE_CHECKING:
    from gateway_local.commands.follow import Row

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
        typer.Option(help="exponential or none; by default exponential."),
    ] = None,
    fps: Annotated[float | None, typer.Option(help="Maximum frames per second; by default all.", min=0.01)] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write the rows to, as JSON lines.", dir_okay=False),
    ] = None,
) -> None:
    """Classify a video over time; a stateful model smooths the labels over the sequence.

    Without --out, each change of the label is a line on stdout. Of files every frame gets a result; of cameras and
    network streams, frames that arrive too fast are dropped.
    """
    from gateway_local.commands import capture, follow

    if out is not None and out.suffix != ".jsonl":
        raise typer.BadParameter(f"{out} should end in .jsonl")
    drop = "oldest" if capture.is_live(source) else "never"
    parameters = {"model": model, "smoothing": smoothing, "top_k": 1, "drop": drop}
    try:
        # The first frame is read before the service is asked, so that its error is reported first.
        frames = capture.frames(source, fps)
        rows = follow.follow(url, chain(list(islice(frames, 1)), frames), parameters, api_key)
        if out is None:
            _print_changes(rows)
        else:
            with out.open("w", encoding="utf-8", buffering=1) as file:
                for row in rows:
                    file.write(json.dumps(row) + "\n")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _print_changes(rows: "Iterator[Row]") -> None:
    shown = None
    for row in rows:
        if not row["error"] and row["label"] != shown:
            shown = row["label"]
            emit(f"{clock(row['seconds'])}  {row['label']}  {row['score']:.2f}")


def clock(seconds: float) -> str:
    """Format seconds as H:MM:SS.s."""
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes) // 60}:{int(minutes) % 60:02}:{rest:04.1f}"
