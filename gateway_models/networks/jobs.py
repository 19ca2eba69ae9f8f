"""The process that `isolation` starts: for each line with a Job as JSON, writes its answer or an error.

python -m gateway_models.networks.jobs
"""

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic_core import to_jsonable_python
from torch import Tensor

from gateway.errors import UserError
from gateway_models.networks.adapted import arranged, known_form
from gateway_models.networks.after import do_step
from gateway_models.networks.converters import open_network
from gateway_models.networks.cpu_form import do_cpu_form
from gateway_models.networks.errors import ModelError
from gateway_models.networks.file_kinds import library_kind
from gateway_models.networks.function_job import do_function
from gateway_models.networks.functions import load_staged
from gateway_models.networks.hub import HUGGING_FACE, weights_in
from gateway_models.networks.isolation import IMAGES, JOB, SCORES, TIMEOUT_SECONDS, Job, Task
from gateway_models.networks.job_checks import report
from gateway_models.networks.onnx_job import do_framework, do_onnx
from gateway_models.networks.torch_job import do_torch
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import Format

GIB = 2**30
SPARE_BYTES = 8 * GIB
"""Address space for any network, in addition to the mapped libraries."""
PER_SOURCE_BYTE = 12
"""More address space per byte of the source: weights as loaded, traced, frozen and read again, with activations."""
WRITTEN_PER_SOURCE_BYTE = 4
SPARE_WRITTEN_BYTES = GIB
BLOCK_BYTES = 512
"""The unit of st_blocks in stat(2), on every file system."""
PAGE_BYTES = resource.getpagesize()
STATM = Path("/proc/self/statm")
_originals: dict[Path, Callable[[Tensor], Tensor]] = {}
"""By folder."""


def confine(source_bytes: int, *, cpu_seconds: float, address_space: bool = True) -> None:
    """Limit this process permanently: address space, CPU time, the size of each file it writes, and no core dumps.

    Call it after the large libraries have been imported: what they have mapped does not count. Beyond the limits, an
    allocation fails, a write fails, or the process ends by SIGXCPU.
    """
    if address_space:
        mapped = int(STATM.read_text().split()[0]) * PAGE_BYTES
        _limit(resource.RLIMIT_AS, mapped + SPARE_BYTES + PER_SOURCE_BYTE * source_bytes)
    _limit(resource.RLIMIT_CPU, max(1, int(cpu_seconds)))
    _limit(resource.RLIMIT_FSIZE, SPARE_WRITTEN_BYTES + WRITTEN_PER_SOURCE_BYTE * source_bytes)
    _limit(resource.RLIMIT_CORE, 0)


def stored_bytes(path: Path) -> int:
    """The bytes of a file that occupy disk space: the size of a sparse file would raise every limit."""
    found = path.stat()
    # Some file systems do not count blocks.
    return min(found.st_size, found.st_blocks * BLOCK_BYTES or found.st_size)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def do(job: Job) -> Outcome:
    """Probe a network and write it; raises UserError."""
    if job.spec.own_processor or job.spec.processor:
        from gateway_models.networks.pretrained import check_processor

        report("comparing its preprocessing with the library's own")
        check_processor(job.spec)
    if kind := library_kind(job.kind):
        return do_framework(job, kind)
    return {"onnx": do_onnx, "function": do_function}.get(job.kind, do_torch)(job)


def do_scores(job: Job) -> None:
    """Give images.npy in a job's folder to an original that was trusted when it was added; raises UserError."""
    if job.folder not in _originals:
        _originals[job.folder] = _original(job)
    scores = _originals[job.folder](torch.from_numpy(np.load(job.folder / IMAGES)))
    np.save(job.folder / SCORES, scores.numpy())


def _original(job: Job) -> Callable[[Tensor], Tensor]:
    if job.kind in {"function", "step"}:
        return _code(job.folder)
    kind = library_kind(job.kind)
    assert kind is not None
    network, form = open_network(kind, job.spec), known_form(job.spec)
    return lambda images: network.run(arranged(images, form))


def _code(folder: Path) -> Callable[[Tensor], Tensor]:
    """A function, or a step as a function of rows [N, classes + size]."""
    code, adapter = load_staged(folder)

    def scores(images: Tensor) -> Tensor:
        try:
            return torch.as_tensor(code.scores(images))
        except (Exception, SystemExit) as exc:
            traceback.print_exc()
            raise ModelError(adapter.described(exc)) from exc

    return scores


def read_labels(job: Job) -> tuple[str, ...]:
    """The labels in a file of another library."""
    kind = library_kind(job.kind)
    assert kind is not None
    return open_network(kind, job.spec).labels


TASKS: dict[Task, Callable[[Job], object]] = {
    Task.NETWORK: do,
    Task.LABELS: read_labels,
    Task.CPU_FORM: do_cpu_form,
    Task.STEP: do_step,
    Task.SCORES: do_scores,
}


def _confine(job: Job) -> None:
    if job.task is Task.SCORES:
        return
    if job.kind == "function" or job.task is Task.STEP:
        # Trusted code may map more memory than it uses, so the address space is not limited.
        staged = sum(path.stat().st_size for path in job.folder.rglob("*") if path.is_file())
        confine(staged, cpu_seconds=TIMEOUT_SECONDS * (os.cpu_count() or 2), address_space=False)
        return
    files = [job.file(Format.TORCHSCRIPT)] if job.task is Task.CPU_FORM else _source_files(job)
    # The parent enforces the wall clock; the CPU limit ends a process that the parent could not kill.
    confine(sum(map(stored_bytes, files)), cpu_seconds=TIMEOUT_SECONDS * max(2, torch.get_num_threads()))


def _source_files(job: Job) -> list[Path]:
    source = job.spec.source
    files = [path for path in (Path(source), Path(job.spec.weights or "")) if path.is_file()]
    if source.startswith(HUGGING_FACE):
        files = weights_in(Path(source.removeprefix(HUGGING_FACE)))
    return files


def main() -> None:
    """Write a line of JSON to stdout for each line with a Job on stdin."""
    # Libraries may print anything; only the result may go to the parent.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Half the cores: with all of them, torch slows down severely as soon as another process, such as a server, runs.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    for line in sys.stdin:
        answers.write(json.dumps(_answer(line)) + "\n")
        answers.flush()


def _answer(line: str) -> dict[str, Any]:
    try:
        job = JOB.validate_json(line)
        _confine(job)
        return {"answer": to_jsonable_python(TASKS[job.task](job))}
    except UserError as exc:
        return {"error": str(exc)}
    except MemoryError:
        return {"error": "it needs more memory than a network of its size should: is the file damaged?"}
    except Exception as exc:  # the parent reports it as a sentence; the traceback is on stderr
        traceback.print_exc()
        return {"error": f"{type(exc).__name__}: {exc}"}


if __name__ == "__main__":
    main()
