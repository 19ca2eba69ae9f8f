"""Runs jobs on untrusted files in a separate process, so that a crash or a hang becomes an error."""

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
"""The time limit to probe and write one network; a large one takes minutes on a slow machine."""
PROGRESS = "progress: "

Report = Callable[[str], None]


class WorkFailed(UserError):
    """The process of a job died or exceeded its time limit."""


@dataclass(frozen=True, slots=True)
class Job:
    """A network to be probed and written to `output`.

    `source` is a path or torchvision:ARCH; `kind` is that of model_source.Source; `weights` is a file, the name of
    torchvision weights or "". `side` is that of the images in pixels; `labels` is the number of labels, or None.
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
    """The original's input format, such as uint8-nhwc; "" to detect it."""
    pick: str = ""
    """The output with the scores, by name or number, where there are several."""
    pixels: bool = False
    """Whether the images are pixels of 0 to 255."""
    pixels_implied: bool = False
    """Whether `pixels` was only assumed, since no mean and std were given."""
    gray: tuple[float, float] | None = None
    """The mean and std of a network for gray images."""
    normalise: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """The mean and std of a network that is served with uint8 pixels and normalises them itself."""
    may_export: bool = False
    """Whether a torch.export program may keep its format if TorchScript would give other answers."""
    mapped_bytes: int = 0
    """The size of the files that a function may read."""
    features: str = ""
    """The layer whose output is the embedding, or AUTO; "" for scores only."""
    trust: bool = False
    """Whether a torch.export program may execute code while it is loaded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job; `difference` is the largest difference of a probability from the original's.

    `cpu_only` are the operations that create their tensors on the CPU on any device.
    """

    classes: int
    ending: str
    difference: float
    cpu_only: tuple[str, ...] = ()
    input: str = ""
    format: Format | None = None
    """The format written; it differs from the job's if that would give other answers."""
    features: int = 0
    """The size of each embedding; 0 where the network gives none."""
    features_difference: float = 0.0
    """1 minus the smallest cosine of an embedding and the original's."""


JOB, OUTCOME = TypeAdapter(Job), TypeAdapter(Outcome)


def start_process() -> subprocess.Popen[str]:
    """Start the process that runs a job, with pipes as its standard streams; tests replace it by a faster one."""
    return subprocess.Popen(
        [sys.executable, "-m", "gateway_models.networks.jobs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def work(job: Job, report: Report, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Outcome:
    """Run a job in a separate process; raises ModelFileError with its reason, or WorkFailed."""
    process = start_process()
    stderr_lines: list[str] = []
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    listener = threading.Thread(target=_listen, args=(process.stderr, report, stderr_lines), daemon=True)
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
    return _read(job, answer, code, stderr_lines)


def _listen(lines: Iterable[str], report: Report, stderr_lines: list[str]) -> None:
    for line in lines:
        if line.startswith(PROGRESS):
            report(line.removeprefix(PROGRESS).rstrip())
        else:
            stderr_lines.append(line.rstrip())


def _read(job: Job, answer: str, code: int, stderr_lines: list[str]) -> Outcome:
    try:
        values = json.loads(answer.splitlines()[-1])
    except (IndexError, ValueError):
        died = f"of signal {-code}" if code < 0 else f"with code {code}"
        last = f" Its last output: {stderr_lines[-1]}" if stderr_lines else ""
        raise WorkFailed(
            f"the process that loaded {job.source} ended {died}: the file is damaged, or it needed more memory or time "
            f"than a network of its size should.{last}"
        ) from None
    if "error" in values:
        raise ModelFileError(f"{job.source.rpartition('/')[2]}: {values['error']}")
    return OUTCOME.validate_python(values)
