"""Programs of torch.export: written as TorchScript or ONNX."""

from pathlib import Path

import pytest
import torch
from torch import nn

from gateway_models.networks import jobs
from gateway_models.networks.errors import ModelError
from gateway_models.networks.file_kinds import EXPORT
from gateway_models.networks.model_source import find_source
from gateway_models.networks.onnx_runner import runner
from gateway_models.networks.programs import load_program
from gateway_models.networks.torchscript import load_torchscript
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import Format, ModelSpec
from tests.gateway_models.networks.builders import Head, job, probabilities, save_program
from tests.gateway_models.networks.special_networks import Calling, Sized

IMAGES = torch.rand(3, 3, 32, 32)


def scaled() -> nn.Module:
    """A classifier that makes a tensor from a list of numbers in its forward."""
    return Calling(lambda scores, _: scores * torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0]))


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return save_program(Head(), tmp_path_factory.mktemp("programs") / "head.pt2")


def tried(program: Path, folder: Path, **changes) -> Outcome:
    return jobs.do(job(program, "exported", folder, **{"trust": True, **changes}))


@pytest.mark.parametrize(
    ("network", "asked"),
    [(Head, Format.TORCHSCRIPT), (Sized, Format.TORCHSCRIPT), (scaled, Format.TORCHSCRIPT), (scaled, Format.ONNX)],
)
def test_program_is_written_in_the_format_that_is_asked_for(tmp_path, network, asked):
    program = save_program(network(), tmp_path / "program.pt2")
    assert find_source(ModelSpec(str(program), "head")).kind == "exported"
    outcome = tried(program, tmp_path, format=asked)
    assert (outcome.format, outcome.difference < 1e-6) == (asked, True)
    path = tmp_path / asked.filename
    with torch.no_grad():
        answers = (runner(path) if asked is Format.ONNX else load_torchscript(path))(IMAGES)
    assert torch.allclose(answers, probabilities(network(), IMAGES), atol=1e-6)


def test_fixed_batch_is_refused_with_export_advice(tmp_path):
    fixed = save_program(Head(), tmp_path / "fixed.pt2", dynamic=False)
    with pytest.raises(ModelError, match=r"fixed batch.*dynamic_shapes=\(\{0: torch\.export\.Dim\.DYNAMIC\},\)"):
        tried(fixed, tmp_path)


def test_unreadable_program_is_reported(program, tmp_path):
    damaged = bytearray(program.read_bytes())
    at = damaged.index(b"models/model.json") + 200
    damaged[at : at + 400] = bytes(400)
    (tmp_path / "damaged.pt2").write_bytes(damaged)
    with pytest.raises(ModelError, match=r"damaged\.pt2 cannot be loaded by torch"):
        load_program(tmp_path / "damaged.pt2")


def test_advice_in_messages_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(EXPORT, {"torch": torch, "model": Head()})  # noqa: S102  # what a user would run
    with torch.no_grad():
        assert load_program(tmp_path / "model.pt2")(torch.rand(5, 3, 224, 224)).shape == (5, 5)
