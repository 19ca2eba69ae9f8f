"""`python -m bench.recovery`: signals to every process of `gateway up --workers 2`, one kind at a time.

Two clients send images continuously. For each fault the table has the number of responses that were not 200, and the
seconds from the signal to the last of them; "–" if there was none.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import httpx
import psutil
import typer

from bench.output import progress, table
from bench.photos import coffee, unlike_any
from bench.services import Service, gateway_up
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

PATIENCE_SECONDS = 180.0
CLIENTS, WORKERS = 2, 2
STEADY_ANSWERS = 10
"""Consecutive good responses of each client after which the fault is over."""
POLL_SECONDS = 0.1


class Fault(NamedTuple):
    """A signal to the processes whose command lines contain all the words."""

    title: str
    words: tuple[str, ...]
    number: signal.Signals
    one: bool = False


FAULTS = (
    *(
        Fault(f"{title}: {number.name}", words, number)
        for title, words in {
            "the preprocessor's processes": ("triton_python_backend_stub", "/preprocessor/"),
            "the classifier's processes": ("triton_python_backend_stub", "/classifier/"),
            "Triton": ("bin/tritonserver",),
            "the API's workers": ("-m gateway.worker",),
            "the decoders": ("-m gateway.decoder",),
        }.items()
        for number in (signal.SIGKILL, signal.SIGTERM)
    ),
    Fault("one preprocessor: SIGSTOP", ("triton_python_backend_stub", "/preprocessor/"), signal.SIGSTOP, one=True),
    Fault("Triton: SIGSTOP", ("bin/tritonserver",), signal.SIGSTOP),
    Fault("one of the API's workers: SIGSTOP", ("-m gateway.worker",), signal.SIGSTOP, one=True),
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
        image = coffee().data
        with httpx.Client(timeout=60) as http:
            while not self._stop.is_set():
                good = False
                with contextlib.suppress(httpx.TransportError):
                    answer = http.post(f"{self.url}/predict", files={"f": ("c.jpg", unlike_any(image))})
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


def processes(service: Service, words: tuple[str, ...]) -> list[psutil.Process]:
    """The service's live processes whose command lines have all the words."""
    found = []
    for process in service.tree():
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


def main(only: Annotated[str, typer.Option(help="Only faults whose names contain this text.")] = "") -> None:
    """Send signals to the processes of `gateway up --workers 2` beside clients, and print how long requests failed."""
    rows = []
    lost = False
    with gateway_up(DEFAULT_MODEL_REPOSITORY, settings={"workers": WORKERS}) as service:
        clients = Clients(service.url)
        for fault in FAULTS:
            if only not in fault.title:
                continue
            wait_for(lambda: clients.steady(0.0) and processes(service, fault.words), PATIENCE_SECONDS)  # noqa: B023
            victims = processes(service, fault.words)[: 1 if fault.one else None]
            sent_at = time.monotonic()
            for victim in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.send_signal(fault.number)
            time.sleep(3)  # most failures come within this time; `steady` waits for the failures of a hang
            recovered = wait_for(lambda: clients.steady(sent_at), PATIENCE_SECONDS)  # noqa: B023
            lost = lost or not recovered
            failed = clients.failed(sent_at)
            seconds = f"{failed[-1] - sent_at:.1f}" if failed and recovered else "–" if recovered else "NEVER"
            rows.append([fault.title, str(len(victims)), str(len(failed)), seconds])
            progress(f"{fault.title}: {seconds}")
        clients.stop()
    print(table(["fault", "processes", "not answered", "recovered after, s"], rows))
    raise typer.Exit(int(lost))


if __name__ == "__main__":
    typer.run(main)
