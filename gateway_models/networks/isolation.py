"""Work on files that are not trusted to be whole, in a process of its own: a crash or a hang there is an error here."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter

from gateway.errors import UserError
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.repository.entry import Format, Precision

TIMEOUT_SECONDS = 600.0
"""For one network to be tried and written; minutes are a large one on a slow machine."""
PROGRESS = "progress: "

Say = Callable[[str], None]


class WorkFailed(UserError):
    """A network's process died, or took too long."""


@dataclass(frozen=True, slots=True)
class Job:
    """A network to be tried and written to `output`.

    `source` is a path or torchvision:ARCH; `kind` is that of sources.Source; `weights` a file, the name of
    torchvision weights or "". `side` is that of the images; `labels` how many there are, or None.
    """

    kind: str
    source: str
    weights: str
    side: int
    labels: int | None
    multi_label: bool
    precision: Precision
    format: Format
    output: str
    input: str = ""
    """What the original takes, such as uint8-nhwc; "" to find it out."""
    pick: str = ""
    """Which of several outputs are the scores, by name or number."""
    pixels: bool = False
    """Whether the images are pixels of 0 to 255."""
    pixels_implied: bool = False
    """Whether that was only taken for granted, since no mean and std were said."""
    gray: tuple[float, float] | None = None
    """The mean and std of a network for gray images."""
    normalise: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """The mean and std of a network that is served with pixels, uint8, and normalises them itself."""
    may_export: bool = False
    """Whether a program of torch.export may stay one, where TorchScript would answer otherwise."""
    mapped_bytes: int = 0
    """Of files that a function may read."""
    features: str = ""
    """The layer whose vectors are wanted as well, or AUTO; "" for scores alone."""
    trust: bool = False
    """Whether a program of torch.export may execute code while it is loaded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found and written; `difference` is the largest of a probability from the original's.

    `cpu_only` are the operations that make their tensors on the CPU whatever the network runs on.
    """

    classes: int
    ending: str
    difference: float
    cpu_only: tuple[str, ...] = ()
    input: str = ""
    format: Format | None = None
    """Another format than the job's, where that would answer otherwise."""
    features: int = 0
    """How many numbers each vector has; 0 where it gives none."""
    features_difference: float = 0.0
    """1 minus the least cosine of a vector and the original's."""


JOB, OUTCOME = TypeAdapter(Job), TypeAdapter(Outcome)


def start_process() -> subprocess.Popen[str]:
    """The process that does a job, with pipes as its standard streams; tests have one that starts faster."""
    return subprocess.Popen(
        [sys.executable, "-m", "gateway_models.networks.jobs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def work(job: Job, say: Say, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Outcome:
    """Do a job in a process of its own; raises ModelFileError with its reasons, or WorkFailed."""
    process = start_process()
    told: list[str] = []
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    listener = threading.Thread(target=_listen, args=(process.stderr, say, told), daemon=True)
    listener.start()
    timer = threading.Timer(timeout_seconds, process.kill)
    timer.start()
    try:
        process.stdin.write(JOB.dump_json(job).decode())
        process.stdin.close()
        answer = process.stdout.read()
        code = process.wait()
    except BrokenPipeError:
        answer, code = "", process.wait()
    finally:
        in_time = timer.is_alive()
        timer.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
        listener.join()
        process.stderr.close()
    if not in_time:
        raise WorkFailed(f"{job.source} did not finish a batch within {timeout_seconds:g} s, so it was stopped")
    return _read(job, answer, code, told)


def _listen(lines: Iterable[str], say: Say, told: list[str]) -> None:
    for line in lines:
        if line.startswith(PROGRESS):
            say(line.removeprefix(PROGRESS).rstrip())
        else:
            told.append(line.rstrip())


def _read(job: Job, answer: str, code: int, told: list[str]) -> Outcome:
    try:
        values = json.loads(answer.splitlines()[-1])
    except (IndexError, ValueError):
        died = f"of signal {-code}" if code < 0 else f"with code {code}"
        last = f" It said: {told[-1]}" if told else ""
        raise WorkFailed(
            f"the process that loaded {job.source} ended {died}: the file is damaged, or it needed more memory or time "
            f"than a network of its size should.{last}"
        ) from None
    if "error" in values:
        raise ModelFileError(f"{job.source.rpartition('/')[2]}: {values['error']}")
    return OUTCOME.validate_python(values)
