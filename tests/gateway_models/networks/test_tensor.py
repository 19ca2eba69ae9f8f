"""Networks that get pixels as uint8 and normalise them themselves: the same answers from a quarter of the bytes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gateway_models.networks import add_checks, jobs
from gateway_models.networks.adapted import Normalising
from gateway_models.networks.add import add
from gateway_models.networks.isolation import Job
from gateway_models.networks.onnx_runner import runner
from gateway_models.networks.originals import load_written
from gateway_models.repository.entry import EntryError, read_entry
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
from tests.gateway_models.repository.entries import SMALL, entry

SUFFIXES = {"save_torchscript": ".pt", "save_program": ".pt2", "save_onnx": ".onnx"}


def normalised(mean: tuple[float, ...] = SMALL.mean, std: tuple[float, ...] = SMALL.std) -> torch.Tensor:
    """As the preprocessor normalises them: one multiplication and one addition."""
    centre, scale = (torch.tensor(values).reshape(3, 1, 1) for values in (mean, std))
    return PIXELS.float().mul_(1 / (255 * scale)).add_(-centre / scale)


@pytest.mark.parametrize(
    ("gpus", "wanted", "written_as", "tensor"),
    [
        (0, None, Format.TORCHSCRIPT, ImageTensor.FP32),
        (1, None, Format.TORCHSCRIPT, ImageTensor.UINT8),
        (1, None, Format.EXPORTED, ImageTensor.UINT8),
        (1, None, Format.ONNX, ImageTensor.UINT8),
        (1, ImageTensor.FP32, Format.ONNX, ImageTensor.FP32),
        (1, None, Format.FUNCTION, ImageTensor.FP32),
        (1, None, Format.TENSORRT, ImageTensor.FP32),
    ],
)
def test_pixels_are_the_default_on_a_machine_with_a_gpu(monkeypatch, gpus, wanted, written_as, tensor):
    """Functions and engines stay as they are."""
    monkeypatch.setattr(add_checks, "gpu_count", lambda: gpus)
    assert add_checks.tensor_between(wanted, None, written_as) is tensor


def test_new_versions_keep_the_tensor_of_the_others(monkeypatch):
    monkeypatch.setattr(add_checks, "gpu_count", lambda: 1)
    assert add_checks.tensor_between(None, entry(), Format.TORCHSCRIPT) is ImageTensor.FP32


def job(source: Path, folder: Path, written_as: Format, **changes) -> Job:
    kind = {".onnx": "onnx", ".pt2": "exported", ".pt": "torchscript"}[source.suffix]
    values = {"format": written_as, "preprocessing": SMALL, "tensor": ImageTensor.UINT8, **changes}
    return builders.job(source, kind, folder / "written", **values)


def written(folder: Path, written_as: Format):
    path = folder / "written" / written_as.filename
    return runner(path) if written_as is Format.ONNX else load_written(path)


def test_normalising_network_computes_the_preprocessors_floats():
    front = Normalising(torch.nn.Identity(), SMALL.mean, SMALL.std)
    assert torch.equal(front(PIXELS), normalised())


@pytest.mark.parametrize(
    ("save", "written_as"),
    [
        (save_torchscript, Format.TORCHSCRIPT),
        (save_torchscript, Format.ONNX),
        (save_program, Format.EXPORTED),
        (save_onnx, Format.ONNX),
    ],
    ids=["torchscript", "torchscript-to-onnx", "torch-export", "onnx"],
)
def test_network_is_written_for_pixels_in_every_format(tmp_path, save, written_as):
    source = save(Head(), tmp_path / f"head{SUFFIXES[save.__name__]}")
    outcome = jobs.do(job(source, tmp_path, written_as))
    assert outcome.difference < 1e-6
    with torch.no_grad():
        answers = written(tmp_path, written_as)(PIXELS)
    assert torch.allclose(answers, probabilities(Head(), normalised()), atol=1e-6)


@pytest.mark.parametrize(
    ("written_as", "precision"), [(Format.TORCHSCRIPT, Precision.BF16), (Format.ONNX, Precision.FP16)]
)
def test_pixels_are_normalised_in_fp32_whatever_the_network_computes_in(tmp_path, written_as, precision):
    """Pixels of nearly one level: normalised in a lower precision, they would be another image."""
    source = save_torchscript(Head(), tmp_path / "head.pt")
    plain = tmp_path / "plain"
    for folder, changes in ((plain, {"tensor": ImageTensor.FP32}), (tmp_path, {})):
        jobs.do(job(source, folder, written_as, precision=precision, **changes))
    with torch.no_grad():
        expected = written(plain, written_as)(normalised())
        # 1e-4 away where fp16 normalises.
        assert torch.allclose(written(tmp_path, written_as)(PIXELS), expected, atol=2e-5)


def test_gray_network_gets_pixels_too(tmp_path):
    source = save_torchscript(Head(channels=1), tmp_path / "head.pt", channels=1)
    gray = replace(SMALL, mean=(0.4,) * 3, std=(0.25,) * 3)
    outcome = jobs.do(job(source, tmp_path, Format.TORCHSCRIPT, preprocessing=gray, grayscale=True))
    assert outcome.difference < 1e-6


def test_model_is_added_for_pixels_and_its_later_versions_are_alike(own_head, tmp_path):
    source = save_torchscript(Head(), tmp_path / "head.pt")
    add(spec_of(source, tmp_path, name="bytes", tensor=ImageTensor.UINT8), own_head, print)
    preprocessor = (own_head / "bytes_preprocessor" / "config.pbtxt").read_text()
    classifier = (own_head / "bytes_classifier" / "config.pbtxt").read_text()
    assert "data_type: TYPE_UINT8\n    dims: [ 3, 32, 32 ]" in preprocessor
    assert "data_type: TYPE_UINT8\n    dims: [ 3, 32, 32 ]" in classifier
    assert "TYPE_UINT8 dims: [ 3, 32, 32 ] random_data: true" in classifier
    second = ModelSpec(str(save_torchscript(Head(seed=1), tmp_path / "second.pt")), "bytes", version=2)
    with pytest.raises(EntryError, match="share a preprocessor that gives uint8: leave --tensor out"):
        add(replace(second, tensor=ImageTensor.FP32), own_head, print)
    entry = add(second, own_head, print)
    assert entry == read_entry(own_head, "bytes")
    with torch.no_grad():
        answers = load_written(entry.model_file(own_head, 2))(PIXELS)
    assert torch.allclose(answers, probabilities(Head(seed=1), normalised()), atol=1e-6)
