"""Triton's backend for PyTorch loads a copied file under the same guard as `gateway model add`; without a Triton."""

from pathlib import Path
from types import ModuleType

import pytest
import torch

from gateway_local.paths import DEFAULT_BACKENDS
from gateway_models.networks.torchscript import without_deprecations
from tests.doubles.python_backend import imported, python_backend
from tests.gateway_models.networks.builders import save_program, save_torchscript
from tests.gateway_models.networks.test_archives import (
    DROPPED,
    HOSTILE,
    IMAGES,
    Constants,
    Writes,
    altered,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        python_backend(patch)
        return imported(patch, DEFAULT_BACKENDS / "pytorch" / "on_torch.py")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return save_program(Constants(), tmp_path_factory.mktemp("backend") / "model.pt2")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_program_in_a_repository_executes_nothing(backend, program, tmp_path, monkeypatch, hostile):
    monkeypatch.syspath_prepend(tmp_path)
    evidence = tmp_path / "executed"
    path = altered(program, tmp_path / "model.pt2", HOSTILE[hostile](evidence))
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
