"""One run: a row for each image, with its progress; the rows stay if it ends early."""

import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from gateway_client import Gateway, GatewayError, NamedImage
from gateway_client.bulk import BulkError
from gateway_client.bulk.meter import Meter
from gateway_client.bulk.outputs import Row, row_of, writer
from gateway_client.bulk.rows import Rows
from gateway_client.bulk.sources import Shard, Sources
from gateway_client.files import whole_file
from gateway_client.visible import visible


@dataclass(frozen=True, slots=True)
class BulkJob:
    """The sources and options of a run."""

    paths: tuple[str, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `Gateway.classify`, or of `Gateway.embed`."""
    embeddings: bool = False
    """Whether each row has the image's embedding."""
    shard: Shard | None = None
    """The part of the images that this run classifies."""

    def open(self) -> Sources:
        """The images; raises BulkError if a source is missing."""
        return Sources(self.paths, shard=self.shard)


def classified(
    job: BulkJob,
    gateway: Gateway,
    images: Callable[[int], Iterable[NamedImage]],
    meter: Meter,
    tick: Callable[[Meter], None],
) -> Generator[Row, None, None]:
    """Yield a row for each image, as it is ready; raises BulkError and the client's errors.

    The argument of `images` is the service's `max_file_bytes`. `tick` is called after each row, and when the run waits
    for the service.
    """

    def wait(fault: GatewayError, _: float) -> None:
        meter.waiting = fault.message
        tick(meter)

    send = gateway.embed if job.embeddings else gateway.classify
    results = send(images(gateway.limits().max_file_bytes), on_wait=wait, **job.parameters)
    with closing(results):
        for result in results:
            meter.count(result)
            yield row_of(result, embeddings=job.embeddings)
            tick(meter)
    # A shard of few images may have none.
    if not meter.before and not meter.done and job.shard is None:
        raise BulkError(f"no images in {visible(', '.join(job.paths))}")


class FileRun:
    """A run whose output is a file; each row is kept in `OUT.part` as it is ready."""

    def __init__(self, job: BulkJob, out: Path, *, resume: bool, overwrite: bool) -> None:
        self.job, self.out = job, out
        self._write = writer(out, embeddings=job.embeddings)
        self.sources = job.open()
        part = part_of(out)
        for path in (out, part):
            if path.exists() and not (overwrite or resume):
                raise BulkError(f"{path} exists: continue with --resume, or start again with --overwrite")
        with _writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            shard = job.shard and f"{job.shard.number}/{job.shard.count}"
            options = {"embeddings": job.embeddings, **job.parameters, "shard": shard}
            self.rows = Rows(part, options, resume=resume)
        self.before = len(self.rows)
        """Rows of earlier runs."""
        self.meter = Meter(failed_before=self.rows.failed())
        for name in ("model", "version"):
            job.parameters[name] = self.rows.options[name]

    def __enter__(self) -> "FileRun":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _writing(self.rows.path):
            self.rows.close(delete=kind is None)

    def run(self, gateway: Gateway, tick: Callable[[Meter], None]) -> None:
        """Classify the images that have no row yet, and create the output; raises the errors of `classified`."""
        pinned = self.job.parameters["version"]

        def save_and_tick(meter: Meter) -> None:
            with _writing(self.rows.path):
                self.rows.save()
            tick(meter)

        try:
            with closing(classified(self.job, gateway, self._left, self.meter, save_and_tick)) as rows:
                for row in rows:
                    with _writing(self.rows.path):
                        self.rows.add(row)
        except GatewayError as exc:
            if exc.code != "model_not_found" or not self.before or pinned is None:
                raise
            raise BulkError(
                f"the rows in {self.rows.path} are from version {pinned} of the model, which the service no longer "
                f"has ({exc.message}); use --overwrite to classify all images by another version"
            ) from exc
        with _writing(self.out), whole_file(self.out, sync=True) as draft, closing(iter(self.rows)) as rows:
            self._write(rows, draft)

    def _left(self, max_file_bytes: int) -> Iterator[NamedImage]:
        for image in self.sources.images(max_file_bytes):
            if self.rows.has(image.name):
                self.meter.before += 1
            else:
                yield image


def part_of(out: Path) -> Path:
    """The table of an output's rows while it is not complete."""
    return out.with_name(f"{out.name}.part")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else None
        raise BulkError(f"{path} cannot be written: {reason or exc}") from exc
