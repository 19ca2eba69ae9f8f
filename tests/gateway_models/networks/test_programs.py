"""Programs of torch.export: written as TorchScript where that answers alike, as themselves where it does not."""

from pathlib import Path

import pytest
import torch
from torch import nn

from gateway_models.networks import jobs, torch_job
from gateway_models.networks.file_kinds import EXPORT, ModelFileError
from gateway_models.networks.model_source import find_source
from gateway_models.networks.originals import load_written
from gateway_models.networks.programs import export_program, load_program
from gateway_models.networks.torchscript import ExportError
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
    return jobs.do(job(program, "exported", folder, **changes))


def assert_written(path: Path, network: "nn.Module | None" = None) -> None:
    """The written file gives the probabilities of the network."""
    with torch.no_grad():
        assert torch.allclose(load_written(path)(IMAGES), probabilities(network or Head(), IMAGES), atol=1e-6)


@pytest.mark.parametrize(
    ("network", "asked"),
    [
        (Head, None),
        (Head, Format.EXPORTED),
        (Sized, Format.TORCHSCRIPT),
        (scaled, Format.EXPORTED),
        (scaled, Format.TORCHSCRIPT),
    ],
)
def test_program_is_written_in_the_format_that_is_asked_for(tmp_path, network, asked):
    """By default, as TorchScript."""
    program = save_program(network(), tmp_path / "program.pt2")
    assert find_source(ModelSpec(str(program), "head")).kind == "exported"
    outcome = tried(program, tmp_path, **({"format": asked} if asked else {}))
    written_as = asked or Format.TORCHSCRIPT
    assert (outcome.format, outcome.difference < 1e-6) == (written_as, True)
    assert_written(tmp_path / written_as.filename, network())


def test_program_stays_torch_export_if_its_trace_differs(program, tmp_path, monkeypatch):
    def differs(*_, **__):
        raise ExportError("its answers differ from the eager model's by 0.3")

    monkeypatch.setattr(torch_job, "export_torchscript", differs)
    outcome = tried(program, tmp_path)
    assert outcome.format is Format.EXPORTED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt2"]
    assert_written(tmp_path / "model.pt2")
    with pytest.raises(ExportError, match="differ from the eager model's"):
        tried(program, tmp_path, format=Format.TORCHSCRIPT)


def test_fixed_batch_is_refused_with_export_advice(tmp_path):
    fixed = save_program(Head(), tmp_path / "fixed.pt2", dynamic=False)
    with pytest.raises(ModelFileError, match=r"fixed batch.*dynamic_shapes=\(\{0: torch\.export\.Dim\.DYNAMIC\},\)"):
        tried(fixed, tmp_path)


def test_unreadable_program_is_reported(program, tmp_path):
    damaged = bytearray(program.read_bytes())
    at = damaged.index(b"models/model.json") + 200
    damaged[at : at + 400] = bytes(400)
    (tmp_path / "damaged.pt2").write_bytes(damaged)
    with pytest.raises(ModelFileError, match=r"damaged\.pt2 cannot be loaded: it is damaged"):
        load_program(tmp_path / "damaged.pt2")


def test_module_that_torch_export_refuses_leaves_no_file(tmp_path):
    branches = Calling(lambda scores, images: scores if images.sum() > 0 else scores * 2)
    with pytest.raises(ExportError, match=r"torch\.export cannot write it for any batch"):
        export_program(branches, torch.rand(2, 3, 32, 32), tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_advice_in_messages_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(EXPORT, {"torch": torch, "model": Head()})  # noqa: S102  # what a user would run
    with torch.no_grad():
        assert load_program(tmp_path / "model.pt2")(torch.rand(5, 3, 224, 224)).shape == (5, 5)
