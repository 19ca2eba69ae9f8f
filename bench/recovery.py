"""`python -m bench.recovery`: hit every process of `gateway up --workers 2` in turn; print how long clients felt it.

Two clients send pictures all the time. For each fault it prints the seconds from the blow to the end of the last answer
that was not 200, and how many there were; "–" where no client noticed anything.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import httpx
import psutil
import typer
from rich.console import Console
from rich.table import Table

from bench.photos import coffee, unlike_any
from gateway_local.hosts import free_port
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

START_SECONDS, PATIENCE_SECONDS = 300.0, 180.0
CLIENTS = 2
STEADY_ANSWERS = 10
"""Consecutive good responses of each client after which the fault is over."""
POLL_SECONDS = 0.1


class Blow(NamedTuple):
    """A fault for the processes whose command line contains all the words."""

    title: str
    words: tuple[str, ...]
    number: signal.Signals
    one: bool = False


BLOWS = (
    *(
        Blow(f"{who}: {number.name}", words, number)
        for who, words in {
            "the preprocessor's processes": ("triton_python_backend_stub", "/preprocessor/"),
            "the classifier's processes": ("triton_python_backend_stub", "/classifier/"),
            "Triton": ("bin/tritonserver",),
            "the API's supervisor": ("-m gateway_cli serve",),
            "the API's workers": ("spawn_main",),
            "the decoders": ("gateway.decoder.__main__",),
            "the watcher": ("reaper.py",),
        }.items()
        for number in (signal.SIGKILL, signal.SIGTERM)
    ),
    Blow("one preprocessor: SIGSTOP", ("triton_python_backend_stub", "/preprocessor/"), signal.SIGSTOP, one=True),
    Blow("Triton: SIGSTOP", ("bin/tritonserver",), signal.SIGSTOP),
    Blow("one of the API's workers: SIGSTOP", ("spawn_main",), signal.SIGSTOP, one=True),
)


@dataclass
class Clients:
    """Two clients that each send one image after another, none in a cache."""

    url: str
    answers: tuple[list[tuple[float, bool]], ...] = field(default_factory=lambda: tuple([] for _ in range(CLIENTS)))
    """For each client: when each response arrived (time.monotonic), and whether its status was 200."""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        for answers in self.answers:
            threading.Thread(target=self._run, args=(answers,), daemon=True).start()

    def _run(self, answers: list[tuple[float, bool]]) -> None:
        picture = coffee().data
        with httpx.Client(timeout=60) as http:
            while not self._stop.is_set():
                good = False
                with contextlib.suppress(httpx.TransportError):
                    answer = http.post(f"{self.url}/predict", files={"f": ("c.jpg", unlike_any(picture))})
                    good = answer.status_code == httpx.codes.OK
                answers.append((time.monotonic(), good))
                self._stop.wait(0.05 if good else 0.2)

    def stop(self) -> None:
        """Stop sending."""
        self._stop.set()

    def steady(self, since: float) -> bool:
        """Whether each client has had enough consecutive good responses since then."""
        latest = [[good for at, good in list(answers) if at > since][-STEADY_ANSWERS:] for answers in self.answers]
        return all(len(answers) == STEADY_ANSWERS and all(answers) for answers in latest)

    def failed(self, since: float) -> list[float]:
        """The times of the responses that were not good."""
        return sorted(at for answers in self.answers for at, good in list(answers) if at > since and not good)


def processes(root: psutil.Process, words: tuple[str, ...]) -> list[psutil.Process]:
    """The living descendants whose command lines have all the words."""
    found = []
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and all(word in line for word in words):
                found.append(process)
    return found


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    """Whether the condition held before the timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


@contextlib.contextmanager
def running_up() -> Iterator[tuple[psutil.Process, str]]:
    """A ready `gateway up --workers 2`, and its URL."""
    port = free_port()
    command = [sys.executable, "-m", "gateway_cli", "up", "--workers", "2", "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--model-repository", str(DEFAULT_MODEL_REPOSITORY)], stdout=log, stderr=log, cwd=Path.cwd()
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not wait_for(lambda: ready(url) or process.poll() is not None, START_SECONDS) or process.poll():
                log.seek(0)
                raise SystemExit(log.read()[-2000:].decode(errors="replace"))
            yield psutil.Process(process.pid), url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def ready(url: str) -> bool:
    """Whether images are classified there."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health/ready", timeout=10).status_code == httpx.codes.OK
    return False


def main(
    only: Annotated[str, typer.Option(help="Only faults whose names contain this text.")] = "",
) -> None:
    """Hit every process of `gateway up --workers 2` in turn, beside clients, and print how long they felt it."""
    table = Table("fault", "processes hit", "not answered", "healed after, s", box=None, pad_edge=False)
    lost = False
    with running_up() as (root, url):
        clients = Clients(url)
        for blow in BLOWS:
            if only not in blow.title:
                continue
            wait_for(lambda: clients.steady(0.0) and processes(root, blow.words), PATIENCE_SECONDS)  # noqa: B023
            victims = processes(root, blow.words)[: 1 if blow.one else None]
            struck = time.monotonic()
            for victim in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.send_signal(blow.number)
            time.sleep(3)  # what is felt is felt by then, but for a hang, which `steady` waits out
            healed = wait_for(lambda: clients.steady(struck), PATIENCE_SECONDS)  # noqa: B023
            lost = lost or not healed
            failed = clients.failed(struck)
            seconds = f"{failed[-1] - struck:.1f}" if failed and healed else "–" if healed else "NEVER"
            table.add_row(blow.title, str(len(victims)), str(len(failed)), seconds)
            typer.echo(f"bench | {blow.title}: {seconds}", err=True)
        clients.stop()
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    raise typer.Exit(int(lost))


if __name__ == "__main__":
    typer.run(main)
