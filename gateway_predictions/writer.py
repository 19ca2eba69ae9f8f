"""The writer: a process that receives rows from a gateway process and writes them, so that no request waits for it.

`python -m gateway_predictions.writer HANDLE OPTIONS` reads messages (see `encode`) from a socket, and sends lines of
JSON: {"written": ROWS}, {"failed": TEXT} for each attempt that failed, or {"kept": TEXT} for old files that cannot be
deleted. It ends when the service closes the socket, however that ends, after a last attempt to write what it has.
"""

import io
import json
import queue
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import to_json

from gateway_machine.child_environment import BUCKETS, child_environment
from gateway_predictions.layout import FEEDBACK, day_in, day_of, image_path, new_file
from gateway_predictions.store import Store, folder_of

FINAL_SECONDS = 5.0
"""Time to write the last rows after the service has ended."""
RETRY_SECONDS = (0.5, 30.0)
"""Pause after the first failure, which doubles with each further one, and the longest pause."""
SHORTEN_SECONDS = 3600.0
"""Time between two attempts to delete old days."""
ROW_BYTES = 1_024
"""What a row without its image and embedding counts."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """What the writer has to know of the settings."""

    url: str
    keep_days: int
    keep_bytes: int
    file_rows: int
    file_bytes: int
    file_seconds: float


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A row for a folder. `embedding` is fp32, little-endian; `image` is the uploaded file, if images are stored."""

    folder: str
    row: dict[str, Any]
    embedding: bytes = field(repr=False)
    image: bytes = field(repr=False)

    @property
    def nbytes(self) -> int:
        """What it counts towards the size of a file."""
        return ROW_BYTES + len(self.embedding) + len(self.image)


def encode(folder: str, row: dict[str, object], embedding: bytes = b"", image: bytes = b"") -> list[bytes]:
    """The pieces of a message: a line of JSON with the folder, the row and two lengths; the embedding and the image."""
    return [to_json([folder, row, len(embedding), len(image)]), b"\n", embedding, image]


def _read(stream: BinaryIO, messages: "queue.Queue[LogMessage | None]") -> None:
    """Queue each message of a stream, and None at its end, where a part of a message is left out."""
    with stream, suppress(ConnectionError):
        while (line := stream.readline()).endswith(b"\n"):
            folder, row, *lengths = json.loads(line)
            embedding, image = (stream.read(length) for length in lengths)
            if [len(embedding), len(image)] != lengths:
                break
            messages.put(LogMessage(folder, row, embedding, image))
    messages.put(None)


class Writer:
    """Collects rows until a file is due, and writes them. Meanwhile it does not read, and the service's queue fills."""

    def __init__(self, connection: socket.socket, options: WriterOptions) -> None:
        self._socket = connection
        self._options = options
        self._store = Store(options.url)
        # Of one message: while files are written, the service's queue has to fill, and not this process.
        self._received: queue.Queue[LogMessage | None] = queue.Queue(1)
        self._messages: list[LogMessage] = []
        self._nbytes = 0
        self._due = 0.0
        self._ending = False
        self._shorten_due = 0.0

    def run(self) -> None:
        """Read and write until the service ends."""
        reader = (self._socket.makefile("rb"), self._received)
        threading.Thread(target=_read, args=reader, daemon=True).start()
        while self._receive():
            if self._is_due():
                self._write()
        self._end_soon()
        self._write()

    def _receive(self) -> bool:
        """Receive a message, or wait for it until a file is due; False at the end."""
        try:
            message = self._received.get(timeout=max(0, self._due - time.monotonic()) if self._messages else None)
        except queue.Empty:
            return True
        if message is None:
            return False
        if not self._messages:
            self._due = time.monotonic() + self._options.file_seconds
        self._messages.append(message)
        self._nbytes += message.nbytes
        return True

    def _is_due(self) -> bool:
        return bool(self._messages) and (
            len(self._messages) >= self._options.file_rows
            or self._nbytes >= self._options.file_bytes
            or time.monotonic() >= self._due
        )

    def _write(self) -> None:
        """Write all rows; while that fails, try again until the service ends."""
        pause, longest = RETRY_SECONDS
        while self._messages:
            try:
                self._write_files()
                self._shorten()
            except Exception as exc:  # each file system raises its own errors
                self._report({"failed": f"{type(exc).__name__}: {exc}"})
                if self._ending:
                    return
                if _closed(self._socket, pause):
                    self._end_soon()
                pause = min(2 * pause, longest)
        self._nbytes = 0

    def _write_files(self) -> None:
        """Write a file for each model and day; rows that are written leave the list."""
        import pyarrow.parquet as pq

        from gateway_predictions import schema

        self._messages.sort(key=_place)
        while self._messages:
            folder, day = place = _place(self._messages[0])
            part = [each for each in self._messages if _place(each) == place]
            columns = schema.FEEDBACK if folder == FEEDBACK else schema.PREDICTIONS
            rows = [{**each.row, "embedding": each.embedding, "image": self._image(each, day)} for each in part]
            data = io.BytesIO()
            pq.write_table(schema.table_of(rows, columns), data, compression="zstd")
            self._store.write(new_file(folder, day), data.getvalue())
            del self._messages[: len(part)]
            self._report({"written": len(part)})

    def _image(self, message: LogMessage, day: str) -> str | None:
        """Write the image of a row unless it is there; returns its path."""
        if not message.image:
            return None
        path = image_path(day, message.row["sha256"], message.row["format"])
        if not self._store.exists(path):
            self._store.write(path, message.image)
        return path

    def _shorten(self) -> None:
        """Delete old days of a folder, at most every SHORTEN_SECONDS."""
        if self._store.folder is None or time.monotonic() < self._shorten_due:
            return
        self._shorten_due = time.monotonic() + SHORTEN_SECONDS
        try:
            shorten(self._store.folder, self._options.keep_days, self._options.keep_bytes, datetime.now(UTC).date())
        except OSError as exc:
            self._report({"kept": str(exc)})

    def _report(self, message: dict[str, object]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._ending = True  # the service has ended

    def _end_soon(self) -> None:
        """Have the kernel end this process after FINAL_SECONDS (SIGALRM)."""
        self._ending = True
        signal.setitimer(signal.ITIMER_REAL, FINAL_SECONDS)


def shorten(log: Path, keep_days: int, keep_bytes: int, today: date) -> None:
    """Delete days older than `keep_days`, then the oldest ones until at most `keep_bytes` are left; 0: no limit.

    Today is never deleted. Several writers may do so at once.
    """
    days: defaultdict[date, list[Path]] = defaultdict(list)
    for pattern in ("rows/*/day=*", "feedback/day=*", "images/day=*"):
        for folder in log.glob(pattern):
            if (day := day_in(folder.name)) is not None:
                days[day].append(folder)
    sizes = {day: sum(map(_nbytes, folders)) for day, folders in days.items()} if keep_bytes else dict.fromkeys(days, 0)
    for day in sorted(days):
        is_old = keep_days and day < today - timedelta(days=keep_days)
        is_large = keep_bytes and sum(sizes.values()) > keep_bytes
        if day >= today or not (is_old or is_large):
            return
        del sizes[day]
        for folder in days[day]:
            with suppress(FileNotFoundError):  # another writer deletes it as well
                shutil.rmtree(folder)


def _nbytes(folder: Path) -> int:
    total = 0
    with suppress(FileNotFoundError):  # another writer deletes it
        for path in folder.iterdir():
            total += path.stat().st_size
    return total


def _place(message: LogMessage) -> tuple[str, str]:
    """The folder and the day of a row's file."""
    return message.folder, day_of(message.row["time"])


def _closed(connection: socket.socket, seconds: float) -> bool:
    """Wait for some seconds; returns early, and True, if the peer has closed its end, even with bytes left to read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(seconds * 1_000))


def start(connection: socket.socket, options: WriterOptions) -> subprocess.Popen[bytes]:
    """Start a writer that serves the other end of this connection; raises OSError."""
    handle = connection.fileno()
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gateway_predictions.writer", str(handle), json.dumps(asdict(options))],
        env=child_environment(*(() if folder_of(options.url) else BUCKETS)),
        pass_fds=(handle,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A signal to the service's group must not end it before the service.
        start_new_session=True,
    )


def main(handle: str, options: str) -> None:
    """Run the writer."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends after the service, with the service's last rows
    with socket.socket(fileno=int(handle)) as connection:
        Writer(connection, WriterOptions(**json.loads(options))).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
