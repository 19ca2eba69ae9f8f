"""How far a run of `gateway classify` is, on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gateway_cli.terminal import say
from gateway_client.visible import visible

if TYPE_CHECKING:
    from gateway_client.bulk.meter import Meter

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def shown(*, transient: bool = False) -> Iterator[Callable[["Meter"], None]]:
    """A line that moves on a terminal, and with `transient` goes at the end; elsewhere a line now and then."""
    if sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, TextColumn

        from gateway_local.console import PlainConsole

        columns = BarColumn(), TextColumn("{task.description}", markup=False)
        with Progress(*columns, console=PlainConsole(stderr=True), transient=transient) as bar:
            task = bar.add_task("starting", total=None)

            def show(meter: "Meter") -> None:
                bar.update(
                    task, total=meter.total, completed=meter.before + meter.done, description=visible(meter.told())
                )

            yield show
        return
    yield _now_and_then()


def _now_and_then() -> Callable[["Meter"], None]:
    last = time.monotonic()

    def tell(meter: "Meter") -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(meter.told())

    return tell


def only_waits() -> Callable[["Meter"], None]:
    """Where the rows themselves show how far the run is: only that it waits, and why."""
    tell = _now_and_then()
    return lambda meter: tell(meter) if meter.waiting else None
