"""Progress of `gateway classify`, on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gateway_cli.terminal import print_status
from gateway_client.visible import visible

if TYPE_CHECKING:
    from gateway_client.bulk.meter import Meter

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
