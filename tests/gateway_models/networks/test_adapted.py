"""Networks whose input differs from the preprocessor's output, or which give more than scores.

At the end, networks that take uint8 pixels and normalise them: the same answers from a quarter of the bytes.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import Tensor, nn

from gateway_models.networks import add_checks, jobs
from gateway_models.networks.adapted import Form, Gray, Normalising, arranged, chosen
from gateway_models.networks.add import add
from gateway_models.networks.errors import ModelError
from gateway_models.networks.isolation import Job
from gateway_models.networks.onnx_graph import any_batch, check_signature
from gateway_models.networks.onnx_runner import runner
from gateway_models.networks.originals import load_written, original_answers
from gateway_models.networks.torchscript import without_deprecations
from gateway_models.repository.entry import EntryError, Outcome, Version, read_entry
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway_models.repository.spec import Format, ImageTensor, ModelSpec, Precision
from tests.gateway_models.networks import builders
from tests.gateway_models.networks.builders import (
    PIXELS,
    Head,
    probabilities,
    save_onnx,
    save_program,
    save_torchscript,
    spec_of,
)
from tests.gateway_models.networks.special_networks import Bytes, Calling, ChannelsLast
from tests.gateway_models.repository.entries import SMALL

FLOATS = PIXELS.float()
GRAY = Gray(0.4, 0.25)
ONE_CHANNEL = Preprocessing((32,), 32, "bilinear", (0.4,) * 3, (0.25,) * 3)
AS_THEY_ARE = Preprocessing((32,), 32, "bilinear", **AS_PIXELS)
KINDS = {".onnx": "onnx", ".pt2": "exported", ".pt": "torchscript"}
AS_BYTES = {"preprocessing": SMALL, "tensor": ImageTensor.UINT8}


def job(source: Path, folder: Path, **changes) -> Job:
    own = Format.ONNX if source.suffix == ".onnx" else Format.TORCHSCRIPT
    return builders.job(source, KINDS[source.suffix], folder / "written", **{"format": own, "trust": True, **changes})


def written(folder: Path) -> Callable[[Tensor], Tensor]:
    (path,) = (folder / "written").glob("model.*")
    return runner(path) if path.suffix == ".onnx" else load_written(path)


def scripted(module: nn.Module, path: Path, example: Tensor) -> Path:
    with torch.no_grad(), without_deprecations():
        torch.jit.trace(module.eval(), example, strict=False).save(path)
    return path


@pytest.mark.parametrize(
    ("module", "example", "found", "to"),
    [
        (ChannelsLast(), torch.rand(2, 32, 32, 3), "float32-nhwc", Format.TORCHSCRIPT),
        (ChannelsLast(), torch.rand(2, 32, 32, 3), "float32-nhwc", Format.ONNX),
        (Bytes(), PIXELS, "uint8-nchw", Format.TORCHSCRIPT),
        (Bytes(last=True), PIXELS.permute(0, 2, 3, 1), "uint8-nhwc", Format.TORCHSCRIPT),
    ],
    ids=["channels-last", "channels-last-to-onnx", "bytes", "bytes-last"],
)
def test_network_gets_the_input_format_that_is_named(tmp_path, module, example, found, to):
    file = scripted(module, tmp_path / "model.pt", example)
    outcome = jobs.do(job(file, tmp_path, pixels=found.startswith("uint8"), format=to, input=found))
    assert outcome.input == found
    expected = probabilities(module, arranged(FLOATS, Form(found)))
    assert torch.allclose(written(tmp_path)(FLOATS), expected, atol=1e-5)
    version = Version(ModelSpec(str(file), "model", preprocessing=AS_THEY_ARE), outcome)
    assert torch.allclose(original_answers(version)(FLOATS)[0], expected, atol=1e-5)


def test_bytes_and_a_normalisation_contradict_each_other(tmp_path):
    file = scripted(Bytes(), tmp_path / "model.pt", PIXELS)
    with pytest.raises(ModelError, match="takes pixels as uint8"):
        jobs.do(job(file, tmp_path, input="uint8-nchw"))


def test_one_of_several_outputs_is_served_by_its_name_or_number(tmp_path):
    several = Calling(lambda scores, images: {"features": images.mean((2, 3)), "logits": scores})
    file = scripted(several, tmp_path / "model.pt", torch.rand(2, 3, 32, 32))
    with pytest.raises(ModelError, match=r"gives a dict of 2 \(features \[2, 3\], logits \[2, 5\]\) .* --output NAME"):
        jobs.do(job(file, tmp_path))
    expected = probabilities(Head(), FLOATS)
    for which in ("logits", "1"):
        jobs.do(job(file, tmp_path, output=which))
        assert torch.allclose(written(tmp_path)(FLOATS), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("output", "which", "reason"),
    [
        (torch.zeros(2, 5), "logits", "has one output, so --output logits selects nothing"),
        ({"a": torch.zeros(2), "b": 3}, "c", r"has no output 'c' among a dict of 2 \(a \[2\]\)"),
        ((1, 2), "", "none of them a tensor"),
        ("scores", "", "gives a str, but a tensor"),
    ],
)
def test_missing_output_is_reported(output, which, reason):
    with pytest.raises(ModelError, match=reason):
        chosen(output, which)


def test_gray_levels_equal_pillows():
    pictures = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    levels = np.stack([np.asarray(Image.fromarray(picture).convert("L")) for picture in pictures])
    images = (torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255 - GRAY.mean) / GRAY.std
    expected = (torch.from_numpy(levels)[:, None] / 255 - GRAY.mean) / GRAY.std
    assert torch.allclose(arranged(images, Form(gray=GRAY)), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("suffix", "options"),
    [(".pt", {}), (".onnx", {}), (".onnx", {"dynamic": False, "batch": 1})],
    ids=["torchscript", "onnx", "onnx for one image"],
)
def test_network_for_gray_images_is_served(tmp_path, suffix, options):
    module = Head(channels=1)
    save = save_onnx if suffix == ".onnx" else save_torchscript
    file = save(module, tmp_path / f"model{suffix}", channels=1, **options)
    gray = {"grayscale": True, "preprocessing": ONE_CHANNEL}
    assert jobs.do(job(file, tmp_path / "pixels", tensor=ImageTensor.UINT8, **gray)).difference < 1e-6
    jobs.do(job(file, tmp_path, **gray))
    images = (FLOATS / 255 - GRAY.mean) / GRAY.std
    expected = probabilities(module, arranged(images, Form(gray=GRAY)))
    assert torch.allclose(written(tmp_path)(images), expected, atol=1e-5)


def graph(nodes: list, dims: list, kind: int | None = None, outputs: tuple[str, ...] = ("scores",)) -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32) * 4, "weights")
    given = helper.make_tensor_value_info("images", kind or TensorProto.FLOAT, dims)
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [dims[0], 5]) for name in outputs]
    body = helper.make_graph(nodes, "g", [given], results, [weights])
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mean(axes: list[int], given: str = "images") -> list:
    return [
        helper.make_node("ReduceMean", [given], ["means"], axes=axes, keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], ["scores"]),
    ]


def tried(model: onnx.ModelProto, folder: Path, **changes) -> Outcome:
    onnx.save(model, folder / "model.onnx")
    return jobs.do(job(folder / "model.onnx", folder, **changes))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.UINT8])
def test_graph_with_channels_last_or_uint8_is_accepted(tmp_path, kind):
    cast = [helper.make_node("Cast", ["images"], ["values"], to=TensorProto.FLOAT)]
    model = graph([*cast, *mean([1, 2], "values")], ["N", 32, 32, 3], kind)
    outcome = tried(model, tmp_path, pixels=True)
    assert outcome.input == ("uint8-nhwc" if kind == TensorProto.UINT8 else "float32-nhwc")
    weights = torch.tensor(numpy_helper.to_array(model.graph.initializer[0]))
    assert torch.allclose(written(tmp_path)(FLOATS), (FLOATS.mean((2, 3)) @ weights).softmax(dim=1), atol=1e-5)


def test_graphs_scores_are_chosen_among_its_outputs(tmp_path):
    nodes = [*mean([2, 3]), helper.make_node("Neg", ["scores"], ["other"])]
    model = graph(nodes, ["N", 3, 32, 32], outputs=("other", "scores"))
    by_name, by_number = (
        tried(model, tmp_path, output=which) and written(tmp_path)(FLOATS) for which in ("scores", "0")
    )
    assert not torch.allclose(by_name, by_number)
    with pytest.raises(ModelError, match=r"2 outputs \(other, scores\), and no 'third'"):
        check_signature(model, 32, output="third")


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [([1, -1], {}), ([1, 3], {"allowzero": 1})],
    ids=["flattened by hand", "flattened by torch.onnx.export"],
)
def test_graph_for_one_image_is_converted_to_any_batch(tmp_path, shape, attributes):
    flatten = helper.make_node("Reshape", ["pooled", "shape"], ["means"], **attributes)
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["pooled"], axes=[2, 3], keepdims=1),
        flatten,
        helper.make_node("MatMul", ["means", "weights"], ["scores"]),
    ]
    model = graph(nodes, [1, 3, 32, 32])
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape), "shape"))
    outcome = tried(model, tmp_path)
    assert outcome.difference < 1e-6
    many = torch.rand(7, 3, 32, 32)
    assert torch.allclose(written(tmp_path)(many), runner(any_batch(model))(many).softmax(dim=1), atol=1e-6)


def test_graph_that_needs_a_batch_of_one_is_refused(tmp_path):
    # A mean over the batch changes nothing with one image, and is wrong with two.
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[0, 2, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["means", "zero"], ["row"]),
        helper.make_node("MatMul", ["row", "weights"], ["scores"]),
    ]
    model = graph(nodes, [1, 3, 32, 32])
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
    with pytest.raises(ModelError, match=r"fixed batch of 1 and does not work with others.* torch\.onnx\.export"):
        tried(model, tmp_path)
    assert not (tmp_path / "written" / "model.onnx").exists()


def normalised(mean: tuple[float, ...] = SMALL.mean, std: tuple[float, ...] = SMALL.std) -> torch.Tensor:
    """As the preprocessor normalises them: one multiplication and one addition."""
    centre, scale = (torch.tensor(values).reshape(3, 1, 1) for values in (mean, std))
    return PIXELS.float().mul_(1 / (255 * scale)).add_(-centre / scale)


@pytest.mark.parametrize(
    ("gpus", "written_as", "tensor"),
    [
        (0, Format.TORCHSCRIPT, ImageTensor.FP32),
        (1, Format.TORCHSCRIPT, ImageTensor.UINT8),
        (1, Format.FUNCTION, ImageTensor.FP32),
    ],
)
def test_pixels_are_the_default_on_a_machine_with_a_gpu(monkeypatch, gpus, written_as, tensor):
    """Functions stay as they are."""
    monkeypatch.setattr(add_checks, "gpu_count", lambda: gpus)
    assert add_checks.default_tensor(written_as) is tensor


def test_normalising_network_computes_the_preprocessors_floats():
    front = Normalising(torch.nn.Identity(), SMALL.mean, SMALL.std)
    assert torch.equal(front(PIXELS), normalised())


@pytest.mark.parametrize(
    ("save", "suffix", "written_as"),
    [
        (save_torchscript, ".pt", Format.TORCHSCRIPT),
        (save_torchscript, ".pt", Format.ONNX),
        (save_program, ".pt2", Format.TORCHSCRIPT),
        (save_onnx, ".onnx", Format.ONNX),
    ],
    ids=["torchscript", "torchscript-to-onnx", "torch-export", "onnx"],
)
def test_network_is_written_for_pixels_in_every_format(tmp_path, save, suffix, written_as):
    source = save(Head(), tmp_path / f"head{suffix}")
    outcome = jobs.do(job(source, tmp_path, format=written_as, **AS_BYTES))
    assert outcome.format is written_as
    assert outcome.difference < 1e-6
    with torch.no_grad():
        answers = written(tmp_path)(PIXELS)
    assert torch.allclose(answers, probabilities(Head(), normalised()), atol=1e-6)


@pytest.mark.parametrize(
    ("written_as", "precision"), [(Format.TORCHSCRIPT, Precision.BF16), (Format.ONNX, Precision.FP16)]
)
def test_pixels_are_normalised_in_fp32_whatever_the_network_computes_in(tmp_path, written_as, precision):
    """Pixels of nearly one level: normalised in a lower precision, they would be another image."""
    source = save_torchscript(Head(), tmp_path / "head.pt")
    plain = tmp_path / "plain"
    for folder, changes in ((plain, {"tensor": ImageTensor.FP32}), (tmp_path, {})):
        jobs.do(job(source, folder, format=written_as, precision=precision, **{**AS_BYTES, **changes}))
    with torch.no_grad():
        expected = written(plain)(normalised())
        # 1e-4 away where fp16 normalises.
        assert torch.allclose(written(tmp_path)(PIXELS), expected, atol=2e-5)


def test_model_is_added_for_pixels_and_its_later_versions_are_alike(own_head, tmp_path):
    source = save_torchscript(Head(), tmp_path / "head.pt")
    add(spec_of(source, tmp_path, name="bytes", tensor=ImageTensor.UINT8), own_head, print)
    preprocessor = (own_head / "bytes_preprocessor" / "config.pbtxt").read_text()
    classifier = (own_head / "bytes_classifier" / "config.pbtxt").read_text()
    assert "data_type: TYPE_UINT8\n    dims: [ 3, 32, 32 ]" in preprocessor
    assert "data_type: TYPE_UINT8\n    dims: [ 3, 32, 32 ]" in classifier
    assert "TYPE_UINT8 dims: [ 3, 32, 32 ] random_data: true" in classifier
    second = ModelSpec(str(save_torchscript(Head(seed=1), tmp_path / "second.pt")), "bytes", version=2)
    with pytest.raises(EntryError, match="tensor is uint8 and not fp32: leave the option out"):
        add(replace(second, tensor=ImageTensor.FP32), own_head, print)
    entry = add(second, own_head, print)
    assert entry == read_entry(own_head, "bytes")
    with torch.no_grad():
        answers = load_written(entry.model_file(own_head, 2))(PIXELS)
    assert torch.allclose(answers, probabilities(Head(seed=1), normalised()), atol=1e-6)
