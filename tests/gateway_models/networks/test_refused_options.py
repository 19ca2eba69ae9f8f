"""Options that do not fit the kind of their source are refused, each in a sentence, before anything is written."""

from pathlib import Path

import pytest

from gateway.errors import UserError
from gateway_models.networks.add import add
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway_models.repository.spec import AUTO, Format, ImageTensor, OpenVino, Precision, Serving
from tests.gateway_models.networks.builders import Head, save_torchscript, spec_of
from tests.gateway_models.networks.functions import save_function

THREE = Preprocessing((32,), 32, "bilinear", (0.1, 0.2, 0.3), (0.5,) * 3)
PIXELS = Preprocessing((40,), 32, "bilinear", **AS_PIXELS)
FUNCTION, RECIPE = "colours.py:classify", "recipe:efficientnet-lite0"
SCRIPT, ONNX, ENGINE = "m.pt", "m.onnx", "m.engine"
REFUSED = [
    (FUNCTION, {"trust": False}, r"colours\.py is code. It runs when it is tested here.* add --trust"),
    (FUNCTION, {"format": Format.ONNX}, "cannot be written as onnx"),
    (FUNCTION, {"precision": Precision.FP16}, "chooses its own precision: leave out --precision"),
    (FUNCTION, {"preprocessing": None}, r"which images does classify take\? Use --crop 224"),
    (FUNCTION, {"weights": "state.pth"}, "a function's files are named by --include"),
    (FUNCTION, {"features": AUTO}, "a Python function has no layers"),
    (FUNCTION, {"tensor": ImageTensor.UINT8}, "functions are not changed"),
    (RECIPE, {"format": Format.FUNCTION}, r"--format function is for FILE\.py:NAME"),
    (SCRIPT, {"include": (Path(),)}, "--include is for the files of a Python function"),
    (SCRIPT, {"serving": Serving(openvino=OpenVino.FP32)}, "--openvino is for ONNX, which it runs: add --format onnx"),
    (SCRIPT, {"precision": Precision.INT8}, "add the model in fp32 with --format onnx, then gateway model tune NAME"),
    (SCRIPT, {"grayscale": True, "preprocessing": THREE}, "--mean and --std are one number each"),
    (
        SCRIPT,
        {"format": Format.ONNX, "serving": Serving(cpu_runtime="torchscript")},
        "--cpu-runtime is for TorchScript",
    ),
    (ENGINE, {"format": Format.ONNX}, "^--format onnx is for networks that are converted"),
    (ENGINE, {"precision": Precision.FP16}, "^--precision is for networks that are converted"),
    (ENGINE, {"features": AUTO}, "^--embeddings is for networks that are converted"),
    (ENGINE, {"output": "logits"}, "^--output is for networks that are converted"),
    (ONNX, {"engine_tensors": ("a", "b")}, "--engine-tensors is for TensorRT engines"),
]


@pytest.mark.parametrize(("source", "changes", "reason"), REFUSED)
def test_option_of_another_kind_of_source_is_refused(tmp_path, source, changes, reason):
    save_function(tmp_path)
    save_torchscript(Head(), tmp_path / SCRIPT)
    (tmp_path / ENGINE).write_bytes(b"ftrt" + bytes(4096))
    (tmp_path / ONNX).write_bytes(b"\x08\x0a\x12\x07pytorch")
    usual = {"classes": 6, "trust": True, "preprocessing": PIXELS} if source == FUNCTION else {}
    place = source if source == RECIPE else f"{tmp_path}/{source}"
    with pytest.raises(UserError, match=reason):
        add(spec_of(place, tmp_path, **{**usual, **changes}), tmp_path / "models", print)
    assert not (tmp_path / "models" / "head").exists()
