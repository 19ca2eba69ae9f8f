"""The default model without its network, for tests that do not depend on its predictions.

Its processes import neither torch nor a decoder: starting a Triton and reloading models takes seconds less.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BEGINNING = """
import os
import sys
import time
import numpy as np
import triton_python_backend_utils as pb_utils

# Triton renames each capsule that it takes over, about which numpy would print an error.
sys.unraisablehook = lambda _: None

class TritonPythonModel:
    def initialize(self, args):
        while os.path.exists(GATE):
            time.sleep(0.01)

"""
PREPROCESSOR = (
    BEGINNING
    + """    def execute(self, requests):
        answers = [pb_utils.get_input_tensor_by_name(request, "RAW_IMAGE").shape()[0] for request in requests]
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor.from_dlpack("PREPROCESSED_IMAGE", np.zeros((rows, 3, 8, 8), np.float32)),
                    pb_utils.Tensor.from_dlpack("IMAGE_STATUS", np.zeros((rows, 1), np.int32)),
                ]
            )
            for rows in answers
        ]
"""
)
CLASSIFIER = (
    BEGINNING
    + """    def execute(self, requests):
        responses = []
        for request in requests:
            scores = np.zeros((pb_utils.get_input_tensor_by_name(request, "input__0").shape()[0], 1000), np.float32)
            scores[:, 285] = 1.0  # Egyptian cat
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("output__0", scores)]))
        return responses
"""
)


def _gate(repository: Path) -> Path:
    return repository.with_name(f"{repository.name}.gate")


@contextmanager
def starting_waits(repository: Path) -> Iterator[None]:
    """Until the block ends, no step of a lightened repository becomes ready, so that tests can observe a recovery."""
    gate = _gate(repository)
    gate.touch()
    try:
        yield
    finally:
        gate.unlink()


def lightened(repository: Path, folder: Path) -> Path:
    """A copy of the default repository, in `folder`, whose steps fulfil the contract and compute nothing."""
    shutil.copytree(repository, folder, ignore=shutil.ignore_patterns("__pycache__", "*.pt"), copy_function=shutil.copy)
    for model, code in (("preprocessor", PREPROCESSOR), ("classifier", CLASSIFIER)):
        (folder / model / "1").mkdir(exist_ok=True)
        (folder / model / "1" / "model.py").write_text(f"GATE = {str(_gate(folder))!r}\n{code}")
        path = folder / model / "config.pbtxt"
        path.write_text(path.read_text().replace("dims: [ 3, 224, 224 ]", "dims: [ 3, 8, 8 ]"))
    text, found = re.subn(
        r"^platform: .*\n^default_model_filename: .*$", 'backend: "python"', path.read_text(), flags=re.M
    )
    assert found == 1
    path.write_text(text)
    return folder
