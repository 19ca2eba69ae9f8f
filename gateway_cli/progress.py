"""How far a transfer of gigabytes is: a bar on a terminal, elsewhere a line from time to time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from gateway_local.console import PlainConsole
from gateway_local.display import REMIND_SECONDS, Say, reminding
from gateway_plugins.demand.footprint import size


class TransferBars:
    """Shows the steps of gateway_local.runtime.image.fetch on stderr; `say` prints a line."""

    def __init__(self, say: Say, console: PlainConsole | None = None) -> None:
        self._say = say
        self._console = console or PlainConsole(stderr=True)

    @contextmanager
    def step(self, text: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        """Show a step of `total_bytes`; yields a function that takes the number of bytes that were done."""
        if not self._console.is_terminal:
            with self._lines(text, total_bytes) as advance:
                yield advance
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as bars:
            task = bars.add_task(text, total=total_bytes)
            yield lambda done: bars.advance(task, done)

    @contextmanager
    def _lines(self, text: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        done_bytes = 0

        def advance(done: int) -> None:
            nonlocal done_bytes
            done_bytes += done

        def remind(elapsed: float) -> None:
            self._say(f"{text}: {size(done_bytes)} of {size(total_bytes)} after {elapsed:.0f} s")

        self._say(f"{text} ({size(total_bytes)})")
        with reminding(REMIND_SECONDS, remind):
            yield advance
