"""The process that `isolation` starts: reads a Job as JSON, writes an Outcome or an error.

python -m gateway_models.networks.jobs
"""

import json
import os
import sys
import traceback
from pathlib import Path

import torch

from gateway.errors import UserError
from gateway_models.networks.confinement import confine, stored_bytes
from gateway_models.networks.function_job import do_function
from gateway_models.networks.hub import HUGGING_FACE
from gateway_models.networks.isolation import JOB, OUTCOME, TIMEOUT_SECONDS, Job
from gateway_models.networks.onnx_job import do_onnx
from gateway_models.networks.torch_job import do_torch
from gateway_models.repository.entry import Outcome


def do(job: Job) -> Outcome:
    """Probe a network and write it; raises UserError."""
    return {"onnx": do_onnx, "function": do_function}.get(job.kind, do_torch)(job)


def _confine(job: Job) -> None:
    if job.kind == "function":
        # Trusted code may map more memory than it uses, so the address space is not limited.
        staged = sum(path.stat().st_size for path in job.folder.rglob("*") if path.is_file())
        confine(staged, cpu_seconds=TIMEOUT_SECONDS * (os.cpu_count() or 2), address_space=False)
        return
    source = job.spec.source
    files = [path for path in (Path(source), Path(job.spec.weights or "")) if path.is_file()]
    if source.startswith(HUGGING_FACE):
        files = list(Path(source.removeprefix(HUGGING_FACE)).glob("*.safetensors"))
    # The parent enforces the wall clock; the CPU limit ends a process that the parent could not kill.
    confine(sum(map(stored_bytes, files)), cpu_seconds=TIMEOUT_SECONDS * max(2, torch.get_num_threads()))


def main() -> None:
    """Read a Job from stdin, write one line of JSON to stdout."""
    # Libraries may print anything; only the result may go to the parent.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Half the cores: with all of them, torch slows down severely as soon as another process, such as a server, runs.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    try:
        job = JOB.validate_json(sys.stdin.buffer.read())
        _confine(job)
        answer = OUTCOME.dump_python(do(job), mode="json")
    except UserError as exc:
        answer = {"error": str(exc)}
    except MemoryError:
        answer = {"error": "it needs more memory than a network of its size should: is the file damaged?"}
    except Exception as exc:  # the parent reports it as a sentence; the traceback is on stderr
        traceback.print_exc()
        answer = {"error": f"{type(exc).__name__}: {exc}"}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
