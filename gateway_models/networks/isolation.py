"""Runs jobs on untrusted files in a separate process, so that a crash or a hang becomes an error."""

import json
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from gateway.errors import UserError
from gateway.machine.child_environment import NETWORKS, child_environment
from gateway_models.networks.errors import ModelError
from gateway_models.repository.spec import Format, ModelSpec

TIMEOUT_SECONDS = 600.0
"""The time limit to probe and write one network; a large one takes minutes on a slow machine."""
PROGRESS = "progress: "
IMAGES, SCORES = "images.npy", "scores.npy"

T = TypeVar("T")
Report = Callable[[str], None]


class Task(StrEnum):
    """The task of a job, and the type of its answer."""

    NETWORK = "network"
    """Tests a network and writes it into the folder: Outcome."""
    LABELS = "labels"
    """Reads the labels in the file of a spec that may be incomplete: tuple[str, ...]."""
    CPU_FORM = "cpu form"
    """Converts the model.pt in the folder for ONNX Runtime: CpuNetwork."""
    STEP = "step"
    """Tries the post-processing step in the folder: bool, whether it takes embeddings."""
    SCORES = "scores"
    """Writes the original's scores of images.npy in the folder as scores.npy: None. Its process may get many."""


class WorkFailed(UserError):
    """The process of a job died or exceeded its time limit."""


@dataclass(frozen=True, slots=True)
class Job:
    """The network of a completed spec, and the work to do with it in `folder`.

    `kind` is the kind of model_source.Source, or "step" where `folder` has a post-processing step; `labels` is the
    number of labels.
    """

    spec: ModelSpec
    kind: str
    labels: int
    folder: Path
    task: Task = Task.NETWORK

    def file(self, written_as: Format) -> Path:
        """The file to be written."""
        return self.folder / written_as.filename

    @property
    def pixels(self) -> bool:
        """Whether the images are pixels of 0 to 255."""
        return self.spec.prepared.gives_pixels

    @property
    def side(self) -> int:
        """Height and width of the images in pixels."""
        return self.spec.prepared.crop_size


JOB = TypeAdapter(Job)


def start_process() -> subprocess.Popen[str]:
    """Start a process that runs jobs, with pipes as its standard streams; tests replace it by a faster one."""
    return subprocess.Popen(
        [sys.executable, "-m", "gateway_models.networks.jobs"],
        env=child_environment(*NETWORKS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


class NetworkProcess:
    """A process that runs jobs, one after another; it ends with this object. `report` is given its progress."""

    def __init__(self, report: Report) -> None:
        self._process = start_process()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._last_output: deque[str] = deque(maxlen=1)
        arguments = (self._process.stderr, report, self._last_output)
        self._listener = threading.Thread(target=_listen, args=arguments, daemon=True)
        self._listener.start()
        self.close = weakref.finalize(self, _close, self._process, self._listener)

    def run(self, job: Job, answer_type: TypeAdapter[T]) -> T:
        """The answer of a job; raises ModelError with its reason, or WorkFailed."""
        try:
            given = JOB.dump_json(job).decode()
        except PydanticSerializationError as exc:
            raise ModelError(
                f"{job.spec.source}: a name in the path of the model or its labels is not UTF-8: rename it"
            ) from exc
        timer = threading.Timer(TIMEOUT_SECONDS, self._process.kill)
        timer.start()
        try:
            self._stdin.write(f"{given}\n")
            self._stdin.flush()
            answer = self._stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            in_time = timer.is_alive()
            timer.cancel()
        if not in_time:
            raise WorkFailed(
                f"{job.spec.source} did not finish a batch within {TIMEOUT_SECONDS:g} s, so it was stopped"
            )
        if not answer:
            raise WorkFailed(self._why_ended(job))
        values = json.loads(answer)
        if "error" in values:
            raise ModelError(f"{job.spec.source.rpartition('/')[2]}: {values['error']}")
        return answer_type.validate_python(values["answer"])

    def _why_ended(self, job: Job) -> str:
        code = self._process.wait()
        self._listener.join()
        died = f"of signal {-code}" if code < 0 else f"with code {code}"
        last = f" Its last output: {self._last_output[0]}" if self._last_output else ""
        return (
            f"the process that loaded {job.spec.source} ended {died}: the file is damaged, or it needed more memory or "
            f"time than a network of its size should.{last}"
        )


def work(job: Job, report: Report, answer_type: TypeAdapter[T]) -> T:
    """The answer of a job, by a process of its own; raises ModelError with its reason, or WorkFailed."""
    process = NetworkProcess(report)
    try:
        return process.run(job, answer_type)
    finally:
        process.close()


def _listen(lines: Iterable[str], report: Report, last_output: deque[str]) -> None:
    for line in lines:
        if line.startswith(PROGRESS):
            report(line.removeprefix(PROGRESS).rstrip())
        else:
            last_output.append(line.rstrip())


def _close(process: "subprocess.Popen[str]", listener: threading.Thread) -> None:
    process.kill()
    process.wait()
    listener.join()
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()
