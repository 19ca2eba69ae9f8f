"""ONNX files are checked, finished and written with the names of the contract."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from gateway.triton.contract import CLASSIFIER_INPUT, CLASSIFIER_OUTPUT
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.onnx_graph import check_signature, finish, from_module, load_onnx, to_fp16, write
from gateway_models.networks.onnx_runner import runner
from gateway_models.networks.probe import Ending, probe_network
from tests.gateway_models.networks.builders import Head, outputs, probabilities, save_onnx

IMAGES = torch.randn(3, 3, 32, 32)


def finished(path: Path, ending: "Ending | None" = None, *, multi_label: bool = False) -> onnx.ModelProto:
    return finish(load_onnx(path), ending or Ending.LOGITS, multi_label=multi_label, side=32, classes=5)


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
    assert probe_network(runner(path), 32).ending is ending
    model = finished(path, ending, multi_label=multi_label)
    write(model, tmp_path / "new" / "model.onnx")
    assert [tensor.name for tensor in model.graph.input] == [CLASSIFIER_INPUT]
    assert [tensor.name for tensor in model.graph.output] == [CLASSIFIER_OUTPUT]
    scores = outputs(Head(), IMAGES)
    expected = scores.sigmoid() if multi_label else scores.softmax(dim=1)
    assert torch.allclose(runner(tmp_path / "new" / "model.onnx")(IMAGES), expected, atol=1e-5)


def test_finished_model_may_compute_in_fp16(tmp_path):
    answers = runner(to_fp16(finished(save_onnx(Head(), tmp_path / "m.onnx"))))(IMAGES)
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


def signature(dims: list, *, kind: str = "FLOAT", outputs: int = 1) -> onnx.ModelProto:
    number = getattr(TensorProto, kind)
    given = helper.make_tensor_value_info("pixels", number, dims)
    results = [helper.make_tensor_value_info(f"out{n}", number, None) for n in range(outputs)]
    nodes = [helper.make_node("Identity", ["pixels"], [result.name]) for result in results]
    return helper.make_model(helper.make_graph(nodes, "g", [given], results))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (signature([4, 3, 32, 32]), "fixed batch of 4: export it again with the first dimension dynamic.*dynamo=True"),
        (signature(["N", 1, 32, 32]), "but images have three channels.* use --grayscale"),
        (signature(["N", 4, 32, 32]), "but images have three channels.* export it again"),
        (signature(["N", 64, 64, 3]), "takes 64×64 but the crop is 32×32: use --crop 64"),
        (signature(["N", 3, 64, 64]), "takes 64×64 but the crop is 32×32: use --crop 64"),
        (signature(["N", 3072]), "a batch of images"),
        (signature(["N", 3, 32, 32], kind="INT32"), "is INT32, but FLOAT or FLOAT16 or UINT8"),
        (signature(["N", 3, 32, 32], outputs=2), r"2 outputs \(out0, out1\): choose the scores with --output NAME"),
    ],
)
def test_graph_with_other_tensors_is_refused_with_reason(model, reason):
    with pytest.raises(ModelFileError, match=reason):
        check_signature(model, 32)


@pytest.mark.parametrize("dims", [["N", 3, 32, 32], ["N", 3, "height", "width"]])
def test_graph_with_dynamic_batch_is_accepted(dims):
    check_signature(signature(dims), 32)


def test_file_without_a_graph_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x12\xff not a graph")
    with pytest.raises(ModelFileError, match="cannot be read as an ONNX model"):
        load_onnx(tmp_path / "model.onnx")


def test_onnx_export_failure_is_one_sentence():
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(27, 5))  # 32 is no multiple of 3
    with pytest.raises(ModelFileError, match=r"as ONNX: Unsupported: .{,120}input size\. Use --format torchscript$"):
        from_module(pooled, 32)
