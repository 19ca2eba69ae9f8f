"""Without --trust, nothing of a model file is executed as Python, and TorchScript does not access files."""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from gateway_models.networks.add import add
from gateway_models.networks.errors import ModelError
from gateway_models.networks.originals import load_written
from gateway_models.networks.torchscript import load_torchscript, without_deprecations
from tests.gateway_models.networks.builders import Head, Trap, save_program, save_torchscript, saved, spec_of
from tests.gateway_models.networks.special_networks import Maps, Scripted, Writes, WritesWhileLoading

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def evidence(tmp_path) -> Path:
    """The file that exists once something of a hostile file was executed."""
    return tmp_path / "executed"


def altered(source: Path, target: Path, change: Callable[[str, bytes], bytes], **more: bytes) -> Path:
    """A copy of an archive with changed or additional members."""
    with zipfile.ZipFile(source) as given, zipfile.ZipFile(target, "w") as taken:
        folder = given.namelist()[0].partition("/")[0]
        for name in given.namelist():
            taken.writestr(name, change(name.partition("/")[2], given.read(name)))
        for name, data in more.items():
            taken.writestr(f"{folder}/data/constants/{name}", data)
    return target


def test_program_with_a_pickled_constant_is_loaded_only_with_trust(tmp_path, evidence):
    listed = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}

    def change(name: str, data: bytes) -> bytes:
        if name != "data/constants/model_constants_config.json":
            return data
        values = json.loads(data)
        values["config"]["opaque"] = listed
        return json.dumps(values).encode()

    honest = save_program(Head(), tmp_path / "head.pt2")
    path = altered(honest, tmp_path / "hostile.pt2", change, opaque_obj_0=pickle.dumps(Trap(evidence)))
    with pytest.raises(ModelError, match=r"hostile\.pt2 is a torch\.export program: .* can run any code.* add --trust"):
        add(spec_of(path, tmp_path), tmp_path / "models", print)
    with pytest.raises(ModelError, match="add --trust"):
        load_written(path)
    assert not evidence.exists()
    with pytest.raises((ModelError, TypeError)):
        load_written(path, trust=True)
    assert evidence.exists(), "the attack works where it is trusted"


@pytest.mark.parametrize("form", [saved, pickle.dumps], ids=["torch.save", "pickle"])
def test_pickles_in_torchscript_execute_nothing(tmp_path, evidence, form):
    source = save_torchscript(Head(), tmp_path / "model.pt")
    for member in ("data.pkl", "constants.pkl"):
        hostile = form(Trap(evidence))
        path = altered(source, tmp_path / "h.pt", lambda name, data, m=member, h=hostile: h if name == m else data)
        with pytest.raises(ModelError, match=r"h\.pt cannot be loaded as TorchScript"):
            load_torchscript(path)
        assert not evidence.exists(), member


def scripted(network: nn.Module, path: Path) -> Path:
    with without_deprecations():
        torch.jit.script(network.eval()).save(path)
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Writes, "operator aten::save, which may access files"),
        (Maps, "operator aten::from_file, which may access files"),
        (WritesWhileLoading, "runs code while it is loaded"),
    ],
)
def test_torchscript_that_accesses_files_needs_trust(tmp_path, evidence, kind, reason):
    path = scripted(kind(evidence), tmp_path / "hostile.pt")
    with pytest.raises(ModelError, match=rf"{reason}.*None of its code was executed.*add --trust"):
        load_torchscript(path)
    assert not evidence.exists()
    with torch.no_grad():
        load_torchscript(path, trust=True)(IMAGES)
    assert evidence.exists(), "the attack works where it is trusted"


def test_honest_torchscript_gives_the_same_results(tmp_path):
    path = scripted(Scripted(), tmp_path / "scripted.pt")
    with torch.no_grad(), without_deprecations():
        assert torch.equal(load_torchscript(path)(IMAGES), torch.jit.load(path).eval()(IMAGES))
