"""A wheel brings what a checkout has, and models are found where a user would look for them."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gateway.embedded.places import DEFAULT_MODEL_REPOSITORY, default_model_repository, shipped
from tests.processes import PROJECT

BUILD = "import sys, setuptools.build_meta as build; print(build.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The project's wheel, built out of a copy of what is needed for it and unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "model.pt", "labels.txt", "origin.json", "build")
    for name in ("gateway", "triton_models", "triton_backends", "examples"):
        shutil.copytree(PROJECT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=source, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (archive,) = folder.glob("*.whl")
    zipfile.ZipFile(archive).extractall(folder / "installed")
    return folder / "installed"


def gateway(wheel: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the wheel's `gateway`, run in an empty folder of a user who never had a checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    environment |= {"PYTHONPATH": str(wheel), "XDG_DATA_HOME": str(folder / "data")}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def test_a_wheel_brings_the_models_the_backends_and_a_picture_and_no_weights(wheel):
    files = {str(path.relative_to(wheel / "gateway" / "shipped")) for path in (wheel / "gateway/shipped").rglob("*.*")}
    assert {
        "triton_models/ensemble_model/config.pbtxt",
        "triton_models/preprocessor/1/model.py",
        "triton_backends/pytorch/model.py",
        "examples/cat.jpg",
    } <= files
    assert not [name for name in files if name.endswith(("model.pt", "labels.txt", ".pyc"))]


@pytest.mark.slow
def test_without_a_checkout_the_models_are_in_the_user_s_data_folder(wheel, tmp_path):
    export = gateway(wheel, tmp_path, "-m", "gateway", "model", "export")
    assert export.returncode == 0, export.stderr
    repository = tmp_path / "data" / "triton-image-gateway" / "triton_models"
    assert f"copying the default model's configuration to {repository}" in export.stderr
    assert (repository / "classifier" / "1" / "model.pt").is_file()
    code = "from gateway.embedded.places import *; print(DEFAULT_BACKENDS.is_dir(), SHIPPED_EXAMPLES.is_dir())"
    assert gateway(wheel, tmp_path, "-c", code).stdout.split() == ["True", "True"]


def test_a_repository_in_the_folder_where_one_works_comes_first(tmp_path, monkeypatch):
    (tmp_path / "triton_models" / "flowers").mkdir(parents=True)
    assert default_model_repository(tmp_path) == DEFAULT_MODEL_REPOSITORY
    (tmp_path / "triton_models" / "flowers" / "config.pbtxt").touch()
    assert default_model_repository(tmp_path) == tmp_path / "triton_models"


def test_in_a_checkout_everything_is_beside_the_package():
    assert shipped() == PROJECT
    assert default_model_repository(PROJECT / "tests") == PROJECT / "triton_models"
