"""Runs jobs on untrusted files in a separate process, so that a crash or a hang becomes an error."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from gateway.errors import UserError
from gateway.machine.child_environment import NETWORKS, child_environment
from gateway_local.cpu_network import CpuNetwork, CpuRuntime
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import Format, ModelSpec

TIMEOUT_SECONDS = 600.0
"""The time limit to probe and write one network; a large one takes minutes on a slow machine."""
PROGRESS = "progress: "
CPU_FORM = "cpu-form"
"""The kind of a job that converts the model.pt in its folder for ONNX Runtime."""
STEP = "step"
"""The kind of a job that tries the step after a network, in its folder."""

Report = Callable[[str], None]


class WorkFailed(UserError):
    """The process of a job died or exceeded its time limit."""


@dataclass(frozen=True, slots=True)
class Job:
    """The network of a completed spec, to be tested and written into `folder`.

    `kind` is the kind of model_source.Source; `labels` is the number of labels. With `only_labels`, only the labels of
    its file are read, and the spec may be incomplete.
    """

    spec: ModelSpec
    kind: str
    labels: int
    folder: Path
    only_labels: bool = False

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


@dataclass(frozen=True, slots=True)
class StepTrial:
    """What a trial of a step after the network has found: the number of scores for an image, and its arguments."""

    classes: int
    takes_embeddings: bool


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
    )


def work(job: Job, report: Report, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Outcome:
    """Run a job in a separate process; raises ModelFileError with its reason, or WorkFailed."""
    return TypeAdapter(Outcome).validate_python(_answer(job, report, timeout_seconds))


def labels_in(job: Job, report: Report, *, timeout_seconds: float = TIMEOUT_SECONDS) -> tuple[str, ...]:
    """The labels in the file of a job, read in a separate process; raises ModelFileError, or WorkFailed."""
    return tuple(_answer(replace(job, only_labels=True), report, timeout_seconds))


def try_step(job: Job, report: Report, *, timeout_seconds: float = TIMEOUT_SECONDS) -> StepTrial:
    """Try a step after the network in a separate process; raises ModelFileError with its reason, or WorkFailed."""
    return StepTrial(**_answer(replace(job, kind=STEP), report, timeout_seconds))


def convert_for_cpu(job: Job, report: Report, *, timeout_seconds: float = TIMEOUT_SECONDS) -> CpuNetwork:
    """Convert the TorchScript that a job has written in a process of its own: a failure leaves the network as it is."""
    try:
        answer = _answer(replace(job, kind=CPU_FORM), report, timeout_seconds)
        return TypeAdapter(CpuNetwork).validate_python(answer)
    except (ModelFileError, WorkFailed) as exc:
        return CpuNetwork(CpuRuntime.TORCHSCRIPT, str(exc))


def _answer(job: Job, report: Report, timeout_seconds: float) -> Any:  # noqa: ANN401  # JSON
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
    timer = threading.Timer(timeout_seconds, process.kill)
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
        raise WorkFailed(f"{job.spec.source} did not finish a batch within {timeout_seconds:g} s, so it was stopped")
    return _read(job, answer, code, stderr_lines)


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
