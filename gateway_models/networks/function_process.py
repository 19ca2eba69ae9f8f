"""Runs a function in its own process, as the original that served answers are compared with.

python -m gateway_models.networks.function_process FOLDER

Each line of stdin is the path of an .npy file with images fp32 [N, 3, H, W].
The scores, fp32 [N, classes], are written to that path with the suffix .out.npy.
Each line of stdout is a JSON object with the error, or "" for success.
"""

import json
import os
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.functions import FunctionConfig, FunctionSource, load_staged
from gateway_models.networks.isolation import WorkFailed


class FunctionProcess:
    """Calls a function, trusted since it was added before, in a child process that ends with this object.

    Raises ModelFileError if the function cannot be loaded or fails, WorkFailed if its process ends.
    """

    def __init__(self, source: FunctionSource, *, input: str, output: str) -> None:  # noqa: A002  # as the record has it
        scratch = tempfile.TemporaryDirectory(prefix="function-")
        self._folder = Path(scratch.name)
        self._name = source.location.rpartition("/")[2]
        source.stage(self._folder, FunctionConfig(source.path.stem, source.name, input, output))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway_models.networks.function_process", str(self._folder)],
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
            pass  # what it wrote before is read below
        answer = self._process.stdout.readline()
        if not answer:
            raise WorkFailed(f"the process that runs {self._name} ended with code {self._process.wait()}")
        if error := json.loads(answer)["error"]:
            raise ModelFileError(f"{self._name}: {error}")
        return torch.from_numpy(np.load(f"{path}.out.npy"))


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
    failure, function = "", None
    try:
        function, adapter = load_staged(Path(sys.argv[1]))
    except ModelFileError as exc:
        failure = str(exc)
    for line in sys.stdin:
        if function is None:
            report(failure)
            continue
        path = line.rstrip("\n")
        try:
            np.save(f"{path}.out.npy", function.scores(torch.from_numpy(np.load(path))).numpy())
        except (Exception, SystemExit) as exc:
            report(adapter.described(exc))
            continue
        report("")


if __name__ == "__main__":
    main()
