"""A model repository with the same models as FakeTriton, which a real Triton serves without torch."""

import shutil
from pathlib import Path

from gateway.machine.capacity import PROCESS_MEMORY, NetworkRuntime
from gateway.triton.contract import PROCESS_MEMORY_PARAMETER
from gateway.triton.footprint import MemoryRecord
from gateway_local.paths import SHIPPED_MODELS
from tests.doubles.triton import EMBEDDING_SIZE, FAILS, KILLER, LABELS, SCORES, SLOW, UNDECODABLE

ENSEMBLE = """
name: "ensemble_model" platform: "ensemble" max_batch_size: 8
input [
  { name: "RAW_IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] },
  { name: "RAW_IMAGE_LENGTH" data_type: TYPE_INT32 dims: [ 1 ] }
]
output [
  { name: "PREDICTION" data_type: TYPE_FP32 dims: [ 2 ] },
  { name: "IMAGE_STATUS" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "FEATURES" data_type: TYPE_FP32 dims: [ SIZE ] }
]
ensemble_scheduling { step [
  {
    model_name: "preprocessor" model_version: -1
    input_map [ { key: "RAW_IMAGE" value: "RAW_IMAGE" }, { key: "RAW_IMAGE_LENGTH" value: "RAW_IMAGE_LENGTH" } ]
    output_map [ { key: "PIXELS" value: "PIXELS" }, { key: "IMAGE_STATUS" value: "IMAGE_STATUS" } ]
  },
  {
    model_name: "net" model_version: -1
    input_map [ { key: "PIXELS" value: "PIXELS" } ]
    output_map [ { key: "PREDICTION" value: "PREDICTION" }, { key: "FEATURES" value: "FEATURES" } ]
  }
] }
"""
PREPROCESSOR = """
name: "preprocessor" backend: "python" max_batch_size: 8
input [
  { name: "RAW_IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] },
  { name: "RAW_IMAGE_LENGTH" data_type: TYPE_INT32 dims: [ 1 ] }
]
output [
  { name: "PIXELS" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "IMAGE_STATUS" data_type: TYPE_INT32 dims: [ 1 ] }
]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "crop_rounding" value: { string_value: "even" } }
parameters { key: "resize_library" value: { string_value: "pillow" } }
"""
NET = """
name: "net" backend: "python" max_batch_size: 8
input [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [
  { name: "PREDICTION" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" },
  { name: "FEATURES" data_type: TYPE_FP32 dims: [ SIZE ] }
]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
PROCESS_BYTES = 40 * 2**20
"""Memory of a network's process without its weights, a little more than it is."""
MODEL_BYTES = PROCESS_BYTES + PROCESS_MEMORY[NetworkRuntime.PREPROCESSOR].peak_bytes
"""Memory that counts for one of these models, without its weights."""
HEAD = """
import os, sys, time
import numpy as np
import triton_python_backend_utils as pb

# Triton renames each capsule that it takes over, about which numpy would print an error.
sys.unraisablehook = lambda _: None

def tensor(name, array):
    return pb.Tensor.from_dlpack(name, array)

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

"""
PREPROCESSOR_CODE = """
    def answer(self, request):
        rows = np.from_dlpack(pb.get_input_tensor_by_name(request, "RAW_IMAGE"))
        images = [row.tobytes() for row in rows]
        if any(image.startswith(KILLER) for image in images):
            os._exit(1)
        if any(image.startswith(FAILS) for image in images):
            return pb.InferenceResponse(error=pb.TritonError("it fails"))
        if any(image.startswith(SLOW) for image in images):
            time.sleep(1)
        status = np.array([[int(image.startswith(UNDECODABLE))] for image in images], np.int32)
        pixels = np.zeros((len(images), 1), np.float32)
        return pb.InferenceResponse([tensor("PIXELS", pixels), tensor("IMAGE_STATUS", status)])
"""
NET_CODE = """
    def answer(self, request):
        rows = pb.get_input_tensor_by_name(request, "PIXELS").shape()[0]
        scores = np.tile(np.array(SCORES, np.float32), (rows, 1))
        return pb.InferenceResponse(
            [tensor("PREDICTION", scores), tensor("FEATURES", np.ones((rows, SIZE), np.float32))]
        )
"""


def write_repository(folder: Path) -> Path:
    constants = (
        f"KILLER, FAILS, SLOW, UNDECODABLE = {(KILLER, FAILS, SLOW, UNDECODABLE)!r}\n"
        f"SCORES, SIZE = {(SCORES, EMBEDDING_SIZE)!r}\n"
    )
    for name, config, code in (
        ("ensemble_model", ENSEMBLE, ""),
        ("preprocessor", PREPROCESSOR, PREPROCESSOR_CODE),
        ("net", NET, NET_CODE),
    ):
        (folder / name / "1").mkdir(parents=True)
        text = config.replace("SIZE", str(EMBEDDING_SIZE))
        (folder / name / "config.pbtxt").write_text(text if code else text + recorded(PROCESS_BYTES))
        if code:
            (folder / name / "1" / "model.py").write_text(f"{constants}{HEAD}{code}")
    (folder / "net" / "labels.txt").write_text("\n".join(LABELS) + "\n")
    (folder / "sequence_model").symlink_to(SHIPPED_MODELS / "sequence_model")
    return folder


def recorded(nbytes: int) -> str:
    """The line of a configuration with the memory of a process."""
    text = MemoryRecord(NetworkRuntime.PYTHON, nbytes, nbytes).text.replace('"', '\\"')
    return f'parameters {{ key: "{PROCESS_MEMORY_PARAMETER}" value: {{ string_value: "{text}" }} }}\n'


def write_models(folder: Path, number: int, load_seconds: float = 0.0, nbytes: int = 0) -> list[str]:
    """Write the repository and `number` models with separate steps: m00, m01, …; returns their names.

    Each network takes `load_seconds` to load, and `nbytes` of memory.
    """
    write_repository(folder)
    begin = "class TritonPythonModel:\n"
    slow = f"{begin}    def initialize(self, args):\n        time.sleep({load_seconds})\n"
    slow += f"        self.weights = np.ones({nbytes}, np.uint8)\n\n"
    code = folder / "net" / "1" / "model.py"
    code.write_text(code.read_text().replace(begin, slow))
    config = folder / "ensemble_model" / "config.pbtxt"
    config.write_text(config.read_text().replace(recorded(PROCESS_BYTES), recorded(PROCESS_BYTES + nbytes)))
    names = [f"m{index:02}" for index in range(number)]
    for name in names:
        parts = {"ensemble_model": name, "preprocessor": f"{name}_preprocessor", "net": f"{name}_classifier"}
        for part, own in parts.items():
            shutil.copytree(folder / part, folder / own)
            config = folder / own / "config.pbtxt"
            text = config.read_text()
            for before, after in parts.items():
                text = text.replace(f'name: "{before}"', f'name: "{after}"')
            config.write_text(text)
    return names
