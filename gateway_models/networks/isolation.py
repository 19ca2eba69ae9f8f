"""Runs jobs on untrusted files in a separate process, so that a crash or a hang becomes an error."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from gateway.errors import UserError
from gateway.machine.child_environment import NETWORKS, child_environment
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.repository.spec import Format, ModelSpec

TIMEOUT_SECONDS = 600.0
"""The time limit to probe and write one network; a large one takes minutes on a slow machine."""
PROGRESS = "progress: "

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


class WorkFailed(UserError):
    """The process of a job died or exceeded its time limit."""


@dataclass(frozen=True, slots=True)
class Job:
    """The network of a completed spec, and the work to do with it in `folder`.

    `kind` is the kind of model_source.Source; `labels` is the number of labels.
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
    """Start the process that runs a job, with pipes as its standard streams; tests replace it by a faster one."""
    return subprocess.Popen(
        [sys.executable, "-m", "gateway_models.networks.jobs"],
        env=child_environment(*NETWORKS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def work(job: Job, report: Report, answer_type: TypeAdapter[T]) -> T:
    """The answer of a job, by a separate process; raises ModelFileError with its reason, or WorkFailed."""
    try:
        given = JOB.dump_json(job).decode()
    except PydanticSerializationError as exc:
        raise ModelFileError(
            f"{job.spec.source}: a name in the path of the model or its labels is not UTF-8: rename it"
        ) from exc
    process = start_process()
    stderr_lines: list[str] = []
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    listener = threading.Thread(target=_listen, args=(process.stderr, report, stderr_lines), daemon=True)
    listener.start()
    timer = threading.Timer(TIMEOUT_SECONDS, process.kill)
    timer.start()
    try:
        process.stdin.write(given)
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
        raise WorkFailed(f"{job.spec.source} did not finish a batch within {TIMEOUT_SECONDS:g} s, so it was stopped")
    return answer_type.validate_python(_read(job, answer, code, stderr_lines))


def _listen(lines: Iterable[str], report: Report, stderr_lines: list[str]) -> None:
    for line in lines:
        if line.startswith(PROGRESS):
            report(line.removeprefix(PROGRESS).rstrip())
        else:
            stderr_lines.append(line.rstrip())


def _read(job: Job, answer: str, code: int, stderr_lines: list[str]) -> Any:  # noqa: ANN401  # JSON
    try:
        values: dict[str, Any] = json.loads(answer.splitlines()[-1])
    except (IndexError, ValueError):
        died = f"of signal {-code}" if code < 0 else f"with code {code}"
        last = f" Its last output: {stderr_lines[-1]}" if stderr_lines else ""
        raise WorkFailed(
            f"the process that loaded {job.spec.source} ended {died}: the file is damaged, or it needed more memory or "
            f"time than a network of its size should.{last}"
        ) from None
    if "error" in values:
        raise ModelFileError(f"{job.spec.source.rpartition('/')[2]}: {values['error']}")
    return values["answer"]
