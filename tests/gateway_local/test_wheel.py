"""The wheel, installed without the checkout, has everything that its commands need."""

import shutil
import site
import subprocess
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway import __version__
from tests.processes import PACKAGES, PROJECT, python

BUILD = "import sys, setuptools.build_meta as build; print(build.build_wheel(sys.argv[1]))"


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel, and a user's folder."""

    prefix: Path
    home: Path

    @property
    def shipped(self) -> Path:
        (package,) = self.prefix.glob("lib/python*/site-packages/gateway_local")
        return package / "shipped"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The project's wheel, built from a copy of the needed files."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "model.pt", "labels.txt", "origin.json", "build", "configs")
    for name in (*PACKAGES, "triton_models", "docs/examples"):
        shutil.copytree(PROJECT / name, source / name, ignore=ignore)
    for own in ("flowers/config.pbtxt", "flowers_classifier/1/model.onnx", "classifier/2/model.onnx", "retired.json"):
        path = source / "triton_models" / own
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a user's")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "THIRD_PARTY.md"):
        shutil.copy(PROJECT / name, source)
    python("-c", BUILD, folder, cwd=source)
    (archive,) = folder.glob("*.whl")
    return archive


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Installed:
    """The wheel in a new environment that uses the installed requirements of this one, but not the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", symlinks=True, with_pip=False)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    # A folder that a .pth names is searched, but the .pth files in it are not read: so not the one of the checkout.
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    pip = ("-m", "pip", "--python", folder / "venv" / "bin" / "python", "install")
    offline = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        "--no-compile",
    ]
    python(*pip, *offline, wheel)
    (folder / "home").mkdir()
    return Installed(folder / "venv", folder / "home")


@pytest.mark.slow
def test_wheel_contains_models_backends_an_image_and_the_client_but_no_weights(installed):
    """The environment uses it instead of the checkout; GET /client/ answers with the client's wheel."""
    tracked = subprocess.run(
        ["git", "ls-files", "triton_models", "docs/examples"], cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout.split()
    shipped = {str(path.relative_to(installed.shipped)) for path in installed.shipped.rglob("*") if path.is_file()}
    assert shipped == set(tracked)
    (brought,) = installed.prefix.glob("lib/python*/site-packages/gateway/plugins/page/client/*.whl")
    assert brought.name == f"triton_image_gateway_client-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(brought) as archive:
        assert {"gateway_client/__init__.py", "gateway_client/py.typed"} <= set(archive.namelist())
    code = (
        "import gateway; from gateway_local.paths import *; print(gateway.__file__, "
        "all((DEFAULT_BACKENDS / 'pytorch' / name).is_file() for name in ('model.py', 'on_torch.py')))"
    )
    printed = subprocess.run(
        [installed.prefix / "bin" / "python", "-c", code],
        cwd=installed.home,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert Path(printed[0]).is_relative_to(installed.prefix)
    assert printed[1] == "True"
