"""Triton's backend for PyTorch loads a copied file under the same guard as `gateway model add`; without a Triton."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gateway_models.networks.torchscript import without_deprecations
from tests.gateway_models.networks.builders import save_program, save_torchscript
from tests.gateway_models.networks.test_archives import (
    DROPPED,
    HOSTILE,
    IMAGES,
    Constants,
    Writes,
    altered,
)

BACKEND = Path(__file__).parents[2] / "triton_backends" / "pytorch"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        # As Triton's stub imports it.
        patch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
        patch.syspath_prepend(BACKEND)
        spec = importlib.util.spec_from_file_location("pytorch_backend", BACKEND / "on_torch.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return save_program(Constants(), tmp_path_factory.mktemp("backend") / "model.pt2")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_program_in_a_repository_executes_nothing(backend, program, tmp_path, monkeypatch, hostile):
    monkeypatch.syspath_prepend(tmp_path)
    evidence = tmp_path / "executed"
    path = altered(program, tmp_path / "model.pt2", hostile(evidence))
    if hostile in DROPPED:
        with torch.no_grad():
            backend.load(path, CPU)(IMAGES)
    else:
        with pytest.raises(Exception, match=r"its (member|constant) "):
            backend.load(path, CPU)
    assert not evidence.exists()


def test_torchscript_that_reaches_files_is_not_served(backend, tmp_path):
    with without_deprecations():
        torch.jit.script(Writes(tmp_path / "executed")).save(tmp_path / "model.pt")
    with pytest.raises(Exception, match="the operator save, which reaches files"):
        backend.load(tmp_path / "model.pt", CPU)


def test_valid_files_give_the_results_of_their_network(backend, program, tmp_path):
    network = Constants().eval()
    script = save_torchscript(network, tmp_path / "model.pt")
    with torch.no_grad(), without_deprecations():
        for path in (program, script):
            assert torch.allclose(backend.load(path, CPU)(IMAGES), network(IMAGES), atol=1e-6)
