"""One run: writes a row for each image, and keeps the rows if it ends early."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gateway_client import Gateway, GatewayError, NamedImage
from gateway_client.bulk import BulkError
from gateway_client.bulk.journal import Journal, journal_of
from gateway_client.bulk.meter import Meter
from gateway_client.bulk.rows import Row, row_of
from gateway_client.bulk.shards import Shard
from gateway_client.bulk.sinks import converter
from gateway_client.bulk.sources import Sources, count
from gateway_client.visible import visible

INDEX = "index"
"""The member of an indexed row with its image's position among those that were sent."""


class OutputExists(BulkError):
    """The output exists already, complete or partial."""


class OutputUnwritable(BulkError):
    """The disk is full, or the output cannot be written for another reason."""


class NoImages(BulkError):
    """The sources have no image, and there are no rows from before."""


class TooManyFailures(BulkError):
    """More images failed than `--max-failures` allows."""


@dataclass(frozen=True, slots=True)
class BulkJob:
    """The sources and options of a run."""

    sources: tuple[str, ...]
    column: str | None = None
    parameters: dict[str, Any] | None = None
    """Keyword arguments of `Gateway.classify`, or of `Gateway.embed`."""
    max_failures: int | None = None
    embeddings: bool = False
    """Whether each row has the image's embedding."""
    shard: Shard | None = None
    """The part of the images that this run classifies."""


def rows(
    job: BulkJob,
    gateway: Gateway,
    left: Callable[[int], Iterable[NamedImage]],
    meter: Meter,
    tick: Callable[[Meter], None],
    *,
    indexed: bool = False,
) -> Generator[Row, None, None]:
    """Yield a row for each image, as it is ready; raises TooManyFailures, NoImages and the client's errors.

    `left` returns the images; its argument is the service's `max_file_bytes`. `tick` is called after each row, and
    when the run waits for the service.
    """

    def wait(fault: GatewayError, _: float) -> None:
        meter.waiting = fault.message
        tick(meter)

    send = gateway.embed if job.embeddings else gateway.classify
    meter.start()
    results = send(left(gateway.limits().max_file_bytes), on_wait=wait, **(job.parameters or {}))
    with closing(results):
        for result in results:
            meter.count(result)
            row = row_of(result, embeddings=job.embeddings)
            yield {**row, INDEX: result.index} if indexed else row
            tick(meter)
            if job.max_failures is not None and meter.failed > job.max_failures:
                codes = ", ".join(f"{number} {code}" for code, number in meter.codes.most_common())
                raise TooManyFailures(f"{meter.failed} images failed, more than --max-failures: {codes}")
    # A shard of few images may have none.
    if not meter.before and not meter.done and job.shard is None:
        raise NoImages(f"no images in {visible(', '.join(job.sources))}")


class FileRun:
    """A run whose output is a file; each row is written to `OUT.part` as it is ready."""

    def __init__(self, job: BulkJob, out: Path, *, resume: bool, overwrite: bool) -> None:
        self.job, self.out = job, out
        self._convert = converter(out, embeddings=job.embeddings)
        self.journal = Journal(journal_of(out), embeddings=job.embeddings, options=job.parameters)
        self.sources = Sources(job.sources, column=job.column, shard=job.shard)
        with _writing(self.journal.path):
            self._begin(resume=resume, overwrite=overwrite)
        self.meter = Meter(before=self.journal.rows, failed_before=self.journal.failed)

    def __enter__(self) -> "FileRun":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.journal.abandon()

    def _begin(self, *, resume: bool, overwrite: bool) -> None:
        part = self.journal.path
        if resume:
            if not part.exists() and self.out.exists():
                if self._convert is not None:
                    raise OutputExists(f"{self.out} is complete; use --overwrite to start again")
                for _ in Journal(self.out, embeddings=self.job.embeddings, options=self.job.parameters).checked():
                    pass  # check all rows before the file is moved
                self.out.replace(part)  # finished JSON lines can be continued with new images
            self.journal.resume() if part.exists() else self.journal.begin()
            return
        for path in (self.out, part):
            if path.exists() and not overwrite:
                raise OutputExists(f"{path} exists: continue with --resume, or start again with --overwrite")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.journal.begin()

    def run(self, gateway: Gateway, tick: Callable[[Meter], None]) -> None:
        """Classify the images that have no row yet, and create the output.

        Finished rows stay in the journal, whatever happens. Raises OutputUnwritable, and the errors of `rows`.
        """
        count_in_background(self.job, self.meter)
        with closing(rows(self.job, gateway, self._left, self.meter, tick)) as answers:
            for row in answers:
                with _writing(self.journal.path):
                    self.journal.write([row])
        with _writing(self.out):
            self.journal.finish(self.out, self._convert)

    def _left(self, max_file_bytes: int) -> Iterator[NamedImage]:
        return self.journal.left(self.sources.images(max_file_bytes))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise OutputUnwritable(f"{path} cannot be written: {exc.strerror or exc}") from exc


def count_in_background(job: BulkJob, meter: Meter) -> None:
    """Count the images in a thread and set the meter's total when done."""

    def work() -> None:
        try:
            meter.total = count(job.sources, column=job.column, shard=job.shard)
        except (BulkError, OSError):
            return  # the run meets the same error when it reads the images, and reports it

    threading.Thread(target=work, name="count", daemon=True).start()
