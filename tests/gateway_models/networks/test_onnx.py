"""ONNX files are checked, finished and written with the names of the contract."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from gateway.triton.contract import CLASSIFIER_INPUT, CLASSIFIER_OUTPUT
from gateway_models.networks import jobs
from gateway_models.networks.errors import ModelError
from gateway_models.networks.model_source import find_source
from gateway_models.networks.onnx_graph import (
    check_scale,
    check_signature,
    finish,
    from_module,
    load_onnx,
    to_fp16,
)
from gateway_models.networks.onnx_runner import runner
from gateway_models.networks.probe import Ending
from gateway_models.networks.torchscript import without_deprecations
from gateway_models.repository.preprocessing import Preprocessing
from gateway_models.repository.spec import Format, ModelSpec
from tests.gateway_models.networks.builders import Head, job, outputs, probabilities, save_onnx
from tests.gateway_models.networks.special_networks import Scaled

IMAGES = torch.randn(3, 3, 32, 32)


@pytest.mark.parametrize(
    ("last", "ending", "multi_label"),
    [
        (None, Ending.LOGITS, False),
        (nn.Softmax(dim=1), Ending.SOFTMAX, False),
        (nn.LogSoftmax(dim=1), Ending.LOG_SOFTMAX, False),
        (None, Ending.LOGITS, True),
        (nn.Sigmoid(), Ending.SIGMOID, True),
    ],
)
def test_missing_activation_is_appended_to_the_graph(tmp_path, last, ending, multi_label):
    path = save_onnx(Head(last=last), tmp_path / "head.onnx")
    outcome = jobs.do(job(path, "onnx", tmp_path / "new", multi_label=multi_label, format=Format.ONNX))
    assert (outcome.ending, outcome.difference < 1e-5) == (ending, True)
    model = load_onnx(tmp_path / "new" / "model.onnx")
    assert [tensor.name for tensor in model.graph.input] == [CLASSIFIER_INPUT]
    assert [tensor.name for tensor in model.graph.output] == [CLASSIFIER_OUTPUT]
    scores = outputs(Head(), IMAGES)
    expected = scores.sigmoid() if multi_label else scores.softmax(dim=1)
    assert torch.allclose(runner(tmp_path / "new" / "model.onnx")(IMAGES), expected, atol=1e-5)


@pytest.mark.parametrize("opset", [9, 17])
def test_old_operators_and_scores_of_four_dimensions_are_taken(tmp_path, opset):
    """As the zoo of ONNX has them: gray images need Round, which version 9 lacks; scores are [N, classes, 1, 1]."""
    head = nn.Conv2d(5, 5, 1)
    nn.init.eye_(head.weight[:, :, 0, 0])
    nn.init.constant_(head.bias, -1)  # scores below 0, so they are no probabilities
    convolved = nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), head)
    path = tmp_path / "old.onnx"
    with torch.no_grad(), without_deprecations():
        axes = {"pixels": {0: "batch"}, "scores": {0: "batch"}}
        names = {"input_names": ["pixels"], "output_names": ["scores"], "dynamic_axes": axes}
        torch.onnx.export(convolved, (torch.rand(2, 1, 32, 32),), path, opset_version=opset, dynamo=False, **names)
    outcome = jobs.do(job(path, "onnx", tmp_path, grayscale=True, format=Format.ONNX))
    assert (outcome.classes, outcome.difference < 1e-5) == (5, True)


def test_finished_model_may_compute_in_fp16(tmp_path):
    model = load_onnx(save_onnx(Head(), tmp_path / "m.onnx"))
    finished = finish(model, Ending.LOGITS, multi_label=False, side=32, classes=5)
    answers = runner(to_fp16(finished))(IMAGES)
    assert answers.dtype == torch.float32
    assert torch.allclose(answers, probabilities(Head(), IMAGES), atol=5e-3)


def test_tensors_used_inside_of_a_branch_keep_their_meaning():
    """An If whose branches read the graph's input, which gets another name."""
    pooled = helper.make_node("ReduceMean", ["pixels"], ["branch"], axes=[2, 3], keepdims=0)
    branch = helper.make_graph([pooled], "b", [], [helper.make_tensor_value_info("branch", TensorProto.FLOAT, None)])
    yes = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("v", TensorProto.BOOL, [], [True]))
    choice = helper.make_node("If", ["yes"], ["scores"], then_branch=branch, else_branch=branch)
    given = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["N", 3, 32, 32])
    result = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph([yes, choice], "g", [given], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    named = finish(model, Ending.LOGITS, multi_label=False, side=32, classes=3)
    assert torch.allclose(runner(named)(IMAGES), IMAGES.mean(dim=(2, 3)).softmax(dim=1), atol=1e-6)


def small(
    dims: tuple[int | str, ...] = ("N", 3, 32, 32),
    kind: str = "FLOAT",
    outputs: int = 1,
    *,
    weights_in: str = "",
    operator: str = "MatMul",
    domain: str = "",
) -> onnx.ModelProto:
    """A linear classifier: of images of this shape and type, with its weights in another file, by other operators."""
    weights = onnx.numpy_helper.from_array(np.ones((3, 5), np.float32), "weights")
    if weights_in:
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=weights_in)
    nodes = [
        helper.make_node("GlobalAveragePool", ["pixels"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        *(
            helper.make_node(operator, ["flat", "weights"], [f"out{number}"], domain=domain)
            for number in range(outputs)
        ),
    ]
    type_ = TensorProto.DataType.Value(kind)
    given = helper.make_tensor_value_info("pixels", type_, dims)
    results = [helper.make_tensor_value_info(f"out{number}", type_, [dims[0], 5]) for number in range(outputs)]
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph(nodes, "g", [given], results, [weights])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with a file of weights, next to another file."""
    path = tmp_path / "model"
    path.mkdir()
    (tmp_path / "secret").write_bytes(bytes(60))
    (path / "weights.bin").write_bytes(np.ones((3, 5), np.float32).tobytes())
    return path


REFUSED = [
    ({"dims": (4, 3, 32, 32)}, "fixed batch of 4: export it again with the first dimension dynamic.*dynamo=True"),
    ({"dims": ("N", 1, 32, 32)}, "but images have three channels.* use --grayscale"),
    ({"dims": ("N", 4, 32, 32)}, "but images have three channels.* export it again"),
    ({"dims": ("N", 64, 64, 3)}, "takes 64×64 but the crop is 32×32: use --crop 64"),
    ({"dims": ("N", 3, 64, 64)}, "takes 64×64 but the crop is 32×32: use --crop 64"),
    ({"dims": ("N", 3, 64, 32)}, "takes 64×32, but only squares are served: export it for one"),
    ({"dims": ("N", 64, 32, 3)}, "takes 64×32, but only squares are served"),
    ({"dims": ("N", 3072)}, "a batch of images"),
    ({"kind": "INT32"}, "is INT32, but FLOAT or FLOAT16 or UINT8"),
    ({"outputs": 2}, r"2 outputs \(out0, out1\): choose the scores with --output NAME"),
    *(({"weights_in": location}, "cannot be read as an ONNX model: .*weights") for location in ("../secret", "absent")),
    ({"operator": "EPContext", "domain": "com.microsoft"}, "ONNX Runtime cannot run it: .*EPContext"),
    ({"domain": "ai.onnx.contrib"}, "ONNX Runtime cannot run it: .*ai.onnx.contrib:MatMul"),
]
"""What differs in a graph → why it is refused."""


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_graph_is_refused_with_its_reason(folder, changes, reason):
    """Also one that reads other files, or runs operators of other libraries."""
    (folder / "model.onnx").write_bytes(small(**changes).SerializeToString())
    with pytest.raises(ModelError, match=reason):
        jobs.do(job(folder / "model.onnx", "onnx", folder / "written", format=Format.ONNX))


def test_export_of_custom_vision_is_refused(tmp_path):
    """As in 2019: one map of labels for each image, and pixels in BGR."""
    model = small()
    model.graph.node.append(
        helper.make_node("ZipMap", ["out0"], ["loss"], domain="ai.onnx.ml", classlabels_strings=list("abcde"))
    )
    row = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model.graph.output.pop()
    model.graph.output.append(helper.make_value_info("loss", helper.make_sequence_type_proto(row)))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    with pytest.raises(ModelError, match=r"'loss' is no tensor but maps of labels.* Serve it by a Python function"):
        check_signature(model, 32)
    helper.set_model_props(model, {"Image.BitmapPixelFormat": "Bgr8"})
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"takes BGR .* a Python function that reverses the channels"):
        find_source(ModelSpec(str(tmp_path / "model.onnx"), "model"))


PIXELS, FROM_0_TO_1 = ({"mean": (0.0,) * 3, "std": (std,) * 3} for std in (1 / 255, 1.0))
NORMALISED = {"mean": (0.5,) * 3, "std": (0.25,) * 3}


def centred(images: torch.Tensor) -> torch.Tensor:
    return images - torch.tensor([123.0, 116.0, 103.0]).reshape(1, 3, 1, 1)


@pytest.mark.parametrize(
    ("front", "prepared", "fits"),
    [
        (lambda x: x / 255, PIXELS, True),
        (lambda x: x / 255, FROM_0_TO_1, False),
        (lambda x: x / 127.5 - 1, NORMALISED, False),
        (lambda x: nn.functional.interpolate(x, (40, 40), mode="bilinear") / 255, NORMALISED, False),
        (lambda x: centred(x) / 58, PIXELS, True),
        (lambda x: centred(x) / 58, NORMALISED, False),
        (centred, NORMALISED, False),
        (lambda x: (x - 0.5) * 4, FROM_0_TO_1, True),
        (lambda x: (x - 0.5) * 4, NORMALISED, False),
        (lambda x: (x - 0.5) * 4, PIXELS, False),
        (lambda x: x * 0.458 - 0.03, NORMALISED, True),
    ],
)
def test_scaling_in_front_of_a_network_must_fit_its_images(tmp_path, front, prepared, fits):
    """Rescaling and Normalization of Keras, means that are subtracted, and Inception's own transformation."""
    model = load_onnx(save_onnx(Scaled(front), tmp_path / "scaled.onnx"))
    spec = ModelSpec("scaled.onnx", "scaled", preprocessing=Preprocessing((32,), 32, "bilinear", **prepared))
    if fits:
        check_scale(model, spec)
        return
    with pytest.raises(ModelError, match=r"itself .* [Uu]se --(pixels|mean) .* Or insist with --input"):
        check_scale(model, spec)
    check_scale(model, replace(spec, input="float32-nchw"))


def test_file_that_is_no_graph_or_has_others_in_a_branch_is_refused(tmp_path):
    path, branches = tmp_path / "model.onnx", small()
    inner = small(weights_in="/etc/hostname").graph
    branches.graph.node.append(helper.make_node("If", ["out0"], ["other"], then_branch=inner, else_branch=inner))
    for content in (b"\x08\x08\x12\xff not a graph", branches.SerializeToString()):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="cannot be read as an ONNX model"):
            load_onnx(path)


@pytest.mark.parametrize("changes", [{}, {"dims": ("N", 3, "height", "width")}, {"weights_in": "weights.bin"}])
def test_graph_with_dynamic_batch_is_accepted(folder, changes):
    """Its weights may be in a separate file."""
    (folder / "model.onnx").write_bytes(small(**changes).SerializeToString())
    model = load_onnx(folder / "model.onnx")
    check_signature(model, 32)
    assert onnx.numpy_helper.to_array(model.graph.initializer[0]).sum() == 15


def test_onnx_export_failure_is_one_sentence():
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(27, 5))  # 32 is no multiple of 3
    with pytest.raises(ModelError, match=r"as ONNX: Unsupported: .{,120}input size\. Use --format torchscript$"):
        from_module(pooled, 32)
