"""Runs an original that is code, or of another framework, in a separate process: served answers are compared with it.

python -m gateway_models.networks.function_process FOLDER

FOLDER has a function as FunctionSource.stage writes it, network.json with a NetworkCall, or a post-processing step.
Each line of stdin is the path of an .npy file with images fp32 [N, 3, H, W], or for a step with the rows that it takes.
The scores, fp32 [N, classes], are written to that path with the suffix .out.npy.
Each line of stdout is a JSON object with the error, or "" for success.
"""

import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from gateway.errors import UserError
from gateway.machine.child_environment import NETWORKS, child_environment
from gateway_models.networks.adapted import Form, arranged
from gateway_models.networks.after import STEP, load_step
from gateway_models.networks.converters import open_network
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.frameworks import framework_named
from gateway_models.networks.functions import FunctionConfig, FunctionSource, load_staged
from gateway_models.networks.isolation import WorkFailed
from gateway_models.repository.spec import ModelSpec

NETWORK = "network.json"
Scores = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class NetworkCall:
    """A model of another framework, with its input format; `framework` is the key of its entry."""

    spec: ModelSpec
    framework: str
    form: Form


_NETWORK_CALL = TypeAdapter(NetworkCall)


class OriginalProcess:
    """Calls an original, trusted since it was added before, in a child process that ends with this object.

    `stage` writes its folder. Raises ModelFileError if the original cannot be loaded or fails, WorkFailed if its
    process ends.
    """

    def __init__(self, name: str, stage: Callable[[Path], None]) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="original-")
        self._folder = Path(scratch.name)
        self._name = name
        try:
            stage(self._folder)
        except BaseException:
            scratch.cleanup()
            raise
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway_models.networks.function_process", str(self._folder)],
            env=child_environment(*NETWORKS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._close = weakref.finalize(self, _close, self._process, scratch)

    def __call__(self, images: Tensor) -> Tensor:
        """Scores fp32 [N, classes] of images fp32 [N, 3, H, W]."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        path = self._folder / "images.npy"
        np.save(path, images.numpy())
        try:
            self._process.stdin.write(f"{path}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its output is read below
        answer = self._process.stdout.readline()
        if not answer:
            raise WorkFailed(f"the process that runs {self._name} ended with code {self._process.wait()}")
        if error := json.loads(answer)["error"]:
            raise ModelFileError(f"{self._name}: {error}")
        return torch.from_numpy(np.load(f"{path}.out.npy"))


def function_process(source: FunctionSource, *, input: str) -> OriginalProcess:  # noqa: A002  # as the record has it
    """The process of a Python function."""
    config = FunctionConfig(source.path.stem, source.name, input)
    return OriginalProcess(source.location.rpartition("/")[2], lambda folder: source.stage(folder, config))


def network_process(call: NetworkCall) -> OriginalProcess:
    """The process of a network that another framework runs."""
    text = _NETWORK_CALL.dump_json(call)
    return OriginalProcess(Path(call.spec.source).name, lambda folder: _write(folder / NETWORK, text))


def _write(path: Path, text: bytes) -> None:
    path.write_bytes(text)


def _loaded(folder: Path) -> tuple[Scores, Callable[[BaseException], str]]:
    """The original of a folder, and how its errors are described; raises UserError."""
    if (folder / STEP).is_file():
        return load_step(folder)
    if not (folder / NETWORK).is_file():
        function, adapter = load_staged(folder)
        return function.scores, adapter.described
    call = _NETWORK_CALL.validate_json((folder / NETWORK).read_bytes())
    framework = framework_named(call.framework)
    assert framework is not None
    network = open_network(framework, call.spec)
    return lambda images: network.run(arranged(images, call.form)), lambda exc: f"{type(exc).__name__}: {exc}"


def _close(process: "subprocess.Popen[str]", scratch: "tempfile.TemporaryDirectory[str]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    scratch.cleanup()


def main() -> None:
    """Respond to each line until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    # User code may print anything; only responses may go to stdout.
    os.dup2(2, 1)

    def report(error: str) -> None:
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()

    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    failure, scores = "", None
    try:
        scores, described = _loaded(Path(sys.argv[1]))
    except UserError as exc:
        failure = str(exc)
    for line in sys.stdin:
        if scores is None:
            report(failure)
            continue
        path = line.rstrip("\n")
        try:
            np.save(f"{path}.out.npy", scores(torch.from_numpy(np.load(path))).numpy())
        except (Exception, SystemExit) as exc:
            report(described(exc))
            continue
        report("")


if __name__ == "__main__":
    main()
