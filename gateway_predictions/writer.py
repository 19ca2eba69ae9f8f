"""The writer: a process that receives rows from a gateway process and writes them, so that no request waits for it.

`python -m gateway_predictions.writer HANDLE OPTIONS` reads messages (see `frames`) from a socket, and sends lines of
JSON: {"written": ROWS, "refused": ROWS}, {"failed": TEXT} for each attempt that failed, or {"warning": TEXT} for a
fault that concerns no row. It ends when the service closes the socket, however that ends, after a last attempt to write
what it has.
"""

import json
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict

from gateway_predictions.frames import FrameReader, LogMessage
from gateway_predictions.options import WriterOptions
from gateway_predictions.sinks import Sink, open_sink

FINAL_SECONDS = 5.0
"""Time to write the last rows after the service has ended."""
RETRY_SECONDS = (0.5, 30.0)
"""Pause after the first failure, which doubles with each further one, and the longest pause."""
RECEIVED_BYTES = 2**18


class Writer:
    """Collects rows until a file is due, and writes them. Meanwhile it does not read, and the service's queue fills."""

    def __init__(self, connection: socket.socket, options: WriterOptions, sink: Sink) -> None:
        self._socket = connection
        self._options = options
        self._sink = sink
        self._reader = FrameReader()
        self._frames: list[LogMessage] = []
        self._nbytes = 0
        self._due = 0.0
        self._ending = False

    def run(self) -> None:
        """Read and write until the service ends."""
        while self._receive():
            if self._is_due():
                self._write()
        self._ending = True
        _end_within(FINAL_SECONDS)
        self._write()

    def _receive(self) -> bool:
        """Receive what there is, or wait for it until a file is due; False at the end."""
        if self._frames:
            self._socket.settimeout(max(0.001, self._due - time.monotonic()))
        else:
            self._socket.settimeout(None)
        try:
            data = self._socket.recv(RECEIVED_BYTES)
        except TimeoutError:
            return True
        except ConnectionError:
            return False
        for frame in self._reader.feed(data):
            if not self._frames:
                self._due = time.monotonic() + self._options.file_seconds
            self._frames.append(frame)
            self._nbytes += frame.nbytes
        return bool(data)

    def _is_due(self) -> bool:
        return bool(self._frames) and (
            len(self._frames) >= self._options.file_rows
            or self._nbytes >= self._options.file_bytes
            or time.monotonic() >= self._due
        )

    def _write(self) -> None:
        """Write all rows; while that fails, try again until the service ends."""
        pause, longest = RETRY_SECONDS
        while self._frames:
            left = len(self._frames)
            try:
                for done in self._sink.write(self._frames):
                    self._report({"written": done, "refused": left - len(self._frames) - done})
                    left = len(self._frames)
                if warning := self._sink.warning():
                    self._report({"warning": warning})
            except Exception as exc:  # each sink raises its own errors
                self._report({"failed": f"{type(exc).__name__}: {exc}"})
                if self._ending:
                    return
                if _closed(self._socket, pause):
                    self._ending = True
                    _end_within(FINAL_SECONDS)
                pause = min(2 * pause, longest)
        self._nbytes = 0

    def _report(self, message: dict[str, object]) -> None:
        try:
            self._socket.settimeout(None)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._ending = True  # the service has ended


def _closed(connection: socket.socket, seconds: float) -> bool:
    """Wait for some seconds; returns early, and True, if the peer has closed its end, even with bytes left to read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(seconds * 1_000))


def _end_within(seconds: float) -> None:
    """Have the kernel end this process after some seconds (SIGALRM)."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def start(connection: socket.socket, options: WriterOptions) -> subprocess.Popen[bytes]:
    """Start a writer that serves the other end of this connection; raises OSError."""
    handle = connection.fileno()
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gateway_predictions.writer", str(handle), json.dumps(asdict(options))],
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
    settings = WriterOptions(**json.loads(options))
    with socket.socket(fileno=int(handle)) as connection:
        Writer(connection, settings, open_sink(settings)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
