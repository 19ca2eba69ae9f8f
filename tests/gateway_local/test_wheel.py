"""The wheel, installed without the checkout, has everything that its commands need."""

import os
import shutil
import site
import subprocess
import venv
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch

from gateway import __version__
from tests.processes import PACKAGES, PROJECT, free_port, python, wait_for

BUILD = "import sys, setuptools.build_meta as build; print(build.build_wheel(sys.argv[1]))"
LABELS = ["red", "green", "blue"]
AS_TRAINED = ("--resize=32", "--crop=32", "--mean=0,0,0", "--std=1,1,1")


pytestmark = pytest.mark.timeout(900)  # it loads torch four times, from cold files


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel, and a user's folder."""

    prefix: Path
    home: Path

    @property
    def repository(self) -> Path:
        return self.home / "data" / "triton-image-gateway" / "triton_models"

    @property
    def shipped(self) -> Path:
        (package,) = self.prefix.glob("lib/python*/site-packages/gateway_local")
        return package / "shipped"

    def start(self, *arguments: str, **streams) -> subprocess.Popen[str]:
        """A command of the environment's own `gateway`."""
        foreign = ("GATEWAY_", "PYTHONPATH", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment["XDG_DATA_HOME"] = str(self.home / "data")
        command = [self.prefix / "bin" / "gateway", *arguments]
        return subprocess.Popen(command, cwd=self.home, env=environment, text=True, **streams)

    def run(self, *arguments: str) -> str:
        """Run a command that must succeed; return the output of both streams."""
        process = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            printed, _ = process.communicate(timeout=600)
        finally:
            process.kill()
        assert process.returncode == 0, printed
        return printed


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


@pytest.fixture(scope="module")
def exported(installed: Installed) -> str:
    """The output of `model add default`, the first command of a new user."""
    return installed.run("model", "add", "default")


@pytest.fixture
def started(installed: Installed, exported: str, runtime) -> Iterator[tuple[str, str]]:
    """`gateway up` with an added model: its address, and Triton's."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and what Triton runs
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 3))
        torch.jit.trace(network.eval(), torch.rand(2, 3, 32, 32)).save(installed.home / "colours.pt")
    (installed.home / "labels.txt").write_text("\n".join(LABELS) + "\n")
    installed.run("model", "add", "colours.pt", "--name=colours", "--labels=labels.txt", "--instances=1", *AS_TRAINED)
    port, triton_port = free_port(), free_port()
    log = installed.home / "up.log"
    with log.open("w") as output:
        process = installed.start("up", f"--port={port}", f"--triton-port={triton_port}", stdout=output, stderr=output)
    try:
        wait_for(lambda: "Ctrl-C stops everything" in log.read_text(), timeout_seconds=600, process=process)
        yield f"http://127.0.0.1:{port}", f"127.0.0.1:{triton_port}"
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()


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


@pytest.mark.long
def test_model_is_added_served_and_checked_without_a_checkout(installed, exported, started):
    """The default model is in the data folder."""
    assert f"copying the default model's configuration to {installed.repository}" in exported
    assert (installed.repository / "classifier" / "1" / "model.pt").is_file()
    url, triton = started
    assert ".whl" in httpx.get(f"{url}/client/", timeout=60).text
    sample = (installed.shipped / "docs" / "examples" / "cat.jpg").read_bytes()

    def best(model: str) -> str:
        files = {"f": ("cat.jpg", sample)}
        answer = httpx.post(f"{url}/predict", params={"model": model, "top_k": 1}, files=files, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["results"][0]["predictions"][0]["label"]

    assert best("ensemble_model") == "Egyptian cat"
    assert best("colours") in LABELS
    proof = installed.run("model", "verify", "colours", f"--triton={triton}")
    assert "the served answers are the original's" in proof
