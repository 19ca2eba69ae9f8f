"""int8: made of photographs, measured like any other way to serve a model, and refused with a reason."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gateway_models.networks import onnx_graph
from gateway_models.networks.adapted import Form, Gray
from gateway_models.networks.add import add
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.onnx_runner import runner
from gateway_models.networks.probe import Ending
from gateway_models.networks.quantize import quantize
from gateway_models.proof.calibration import (
    MAX_IMAGES,
    NotQuantized,
    calibration_files,
    calibration_images,
    check_int8,
)
from gateway_models.proof.image_files import NoImages
from gateway_models.proof.tune import Measured, Tuner
from gateway_models.proof.variants import TuneStep, Variant
from gateway_models.repository.entry import Entry, read_entry
from gateway_models.repository.preprocessing import reference_transforms
from gateway_models.repository.spec import Format, ImageTensor, Precision
from tests.commands import refusal
from tests.gateway_models.networks.builders import Head, save_onnx, spec_of
from tests.gateway_models.repository.entries import SMALL, entry, with_outcome

GRAY = Gray(0.4, 0.3)


@pytest.fixture(scope="module")
def images(photos) -> torch.Tensor:
    transforms = reference_transforms(SMALL)
    return torch.stack([transforms(Image.open(path).convert("RGB")) for path in sorted(photos.iterdir())])


def finished(path: Path, form: Form, normalise: tuple | None) -> Path:
    """Head as ONNX in the form that is served, in the same folder."""
    save_onnx(Head(channels=1 if form.gray else 3), path, channels=1 if form.gray else 3)
    model = onnx_graph.load_onnx(path)
    shape = {"multi_label": False, "side": 32, "classes": 5, "form": form, "normalise": normalise}
    onnx_graph.write(onnx_graph.finish(model, Ending.LOGITS, **shape), path)
    return path


@pytest.mark.parametrize(
    ("form", "tensor"),
    [(Form(), ImageTensor.FP32), (Form("float32-nchw", GRAY), ImageTensor.FP32), (Form(), ImageTensor.UINT8)],
    ids=["plain", "gray", "uint8"],
)
def test_int8_leaves_pixels_and_probabilities_in_fp32(form, tensor, photos, tmp_path):
    normalise = (SMALL.mean, SMALL.std) if tensor is ImageTensor.UINT8 else None
    fp32, int8 = finished(tmp_path / "fp32.onnx", form, normalise), tmp_path / "int8.onnx"
    batches = list(calibration_images(sorted(photos.iterdir()), entry(tensor=tensor)))
    quantize(fp32, batches, int8)
    images = torch.from_numpy(np.concatenate(batches))
    wanted, answers = runner(fp32)(images), runner(int8)(images)
    assert 0 < float((answers - wanted).abs().max()) < 0.1
    assert torch.allclose(answers.sum(dim=1), torch.ones(len(images)), atol=1e-6)
    model = onnx_graph.load_onnx(int8)
    made_of = {node.op_type: node for node in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Softmax"} <= made_of.keys()
    # What is dequantized goes into the network alone; the arithmetic of gray pixels is where it was.
    dequantized = {name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    ours = [node for node in model.graph.node if any(name.startswith("gateway/") for name in node.output)]
    assert bool(form.gray) == ({"Conv", "Floor"} <= {node.op_type for node in ours})
    assert not any(dequantized & set(node.input) for node in ours if node.op_type in {"Conv", "Mul", "Add", "Floor"})


def test_failed_quantization_leaves_no_file(images, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ModelFileError, match="ONNX Runtime cannot quantize it: "):
        quantize(tmp_path / "bad.onnx", [], tmp_path / "int8.onnx")
    assert not (tmp_path / "int8.onnx").exists()


def test_calibration_takes_a_bounded_number_of_images_from_all_of_a_folder(tmp_path):
    for kind in "abc":
        (tmp_path / kind).mkdir()
        for number in range(MAX_IMAGES // 2):
            (tmp_path / kind / f"{number}.jpg").touch()
    reports: list[str] = []
    files = calibration_files(tmp_path, [tmp_path / "a" / "0.jpg"], reports.append)
    assert len(files) == len(set(files)) == MAX_IMAGES
    counts = [sum(path.parent.name == kind for path in files) for kind in "abc"]
    assert max(counts) - min(counts) <= 2
    assert reports == [f"calibrating int8 with {MAX_IMAGES} of {3 * MAX_IMAGES // 2 - 1} images"]
    with pytest.raises(NoImages, match="none of the calibration images can be read"):
        list(calibration_images(files[:3], entry()))


def test_measured_images_are_not_used_for_calibration(photos):
    with pytest.raises(NoImages, match="are also measured on: give --calibrate other images"):
        calibration_files(photos, list(photos.iterdir()), print)


@pytest.fixture(scope="module")
def added_onnx(tmp_path_factory) -> tuple[Path, Entry]:
    """A repository with Head as ONNX, and its entry; tests copy it."""
    folder = tmp_path_factory.mktemp("int8")
    spec = spec_of(save_onnx(Head(), folder / "head.onnx"), folder)
    return folder / "models", add(spec, folder / "models", print)


def test_int8_is_chosen_by_the_classes_that_it_keeps(added_onnx):
    serving = added_onnx[1].serving
    fp32, int8 = (Variant(Format.ONNX, precision, serving) for precision in (Precision.FP32, Precision.INT8))
    tuner = object.__new__(Tuner)
    slow = Measured(fp32, 10.0, 1e-6)
    tuner.measured = [slow, Measured(int8, 20.0, 0.08, same_top1=0.98)]
    assert tuner.best(1e-3) is slow
    tuner.agreement = 0.95
    assert tuner.best(1e-3) is tuner.measured[1]
    tuner.measured[1] = Measured(int8, 9.0, 0.08, same_top1=1.0)
    assert tuner.best(1e-3) is slow
    # Other precisions are held to their probabilities, whatever classes they keep.
    assert not Measured(fp32, 10.0, 0.1).fits(1e-3)


def test_int8_is_written_in_place_of_the_network_and_made_again_from_it(added_onnx, photos, images, tmp_path):
    repository = Path(shutil.copytree(added_onnx[0], tmp_path / "models"))
    variant = Variant(Format.ONNX, Precision.INT8, added_onnx[1].serving)

    def kept(calibrate: Path | None) -> bytes:
        """The network's file after `tune` chose int8."""
        tuner = Tuner(read_entry(repository, "head"), repository, [photos / "cat.jpg"], 1.0, print)
        tuner.calibrate, tuner.measured = calibrate, [Measured(variant, 9.0, 0.04, same_top1=1.0)]
        tuner._scratch = tmp_path / f"scratch-{calibrate is None}"
        tuner._network(variant)
        now = tuner.keep(variant)
        assert now == read_entry(repository, "head")
        assert (now.precision, now.versions[1].outcome.difference) == (Precision.INT8, 0.04)
        return now.model_file(repository, 1).read_bytes()

    before = added_onnx[1].model_file(repository, 1).read_bytes()
    after = kept(photos)
    assert after != before
    answers = runner(added_onnx[1].model_file(repository, 1))(images)
    assert (answers.argmax(1) == Head().eval()(images).argmax(1)).all()
    assert 'value: { string_value: "int8" }' in (repository / "head" / "config.pbtxt").read_text()
    # Its instances can be tuned afterwards, without the photographs.
    assert kept(None) == after


INT8 = [TuneStep.INT8]


def twice(entry: Entry) -> Entry:
    """Versions of another format, which `tune --try formats` does not change."""
    one = with_outcome(entry, format=Format.TORCHSCRIPT).versions[1]
    return Entry("head", {1: one, 2: one})


@pytest.mark.parametrize(
    ("change", "stages", "reason"),
    [
        (lambda entry: entry, [TuneStep.FORMATS], "--calibrate is for int8: add --try int8"),
        (partial(with_outcome, format=Format.FUNCTION), INT8, "int8 is for ONNX, and head is a Python function"),
        (partial(with_outcome, embedding_size=16), INT8, "head gives embeddings, and int8 would make them differ"),
        (lambda entry: entry.with_serving(tensorrt=True), INT8, "head is written for TensorRT"),
        (twice, [TuneStep.FORMATS, *INT8], r"is served as torchscript: add it under another name"),
        (
            partial(with_outcome, format=Format.TORCHSCRIPT),
            INT8,
            r"head is served as torchscript: add --try formats, .* or add it under another name with "
            r"`gateway model add .*head\.onnx --format onnx`",
        ),
    ],
)
def test_impossible_int8_is_refused_with_advice(added_onnx, change, stages, reason):
    with pytest.raises(NotQuantized, match=reason):
        check_int8(change(added_onnx[1]), stages, Path())
    check_int8(added_onnx[1], INT8, Path())


def test_the_command_refuses_before_it_starts_anything(added_onnx):
    error = refusal("model", "tune", "head", "--try=int8", "--model-repository", added_onnx[0])
    assert "--try int8 needs --calibrate FOLDER: images like those" in error
