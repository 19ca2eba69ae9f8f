"""The commands of the Makefile: what they start, and when they fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


LEFT_OUT = ("MAKE", "MFLAGS", "GATEWAY_", "PIP_EXTRA_INDEX_URL")
INDEX = ("--eval=show: ; @echo $$PIP_EXTRA_INDEX_URL", "show")
"""Prints where pip looks for packages."""


def make(*arguments: str, folder: Path = ROOT, **environment: str) -> str:
    """The output of a make that was not started by another one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**kept, **environment}, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize(
    ("variable", "exported", "options"),
    [("PORT=9000", {}, "--port 9000"), ("X=", {"PORT": "9000"}, ""), ("ARGS=--workers 2", {}, "--workers 2")],
)
def test_make_up_passes_its_variables_and_no_exported_ones(variable, exported, options):
    command = make("--dry-run", "up", variable, **exported).splitlines()[-1]
    assert command.split()[1:] == [".venv/bin/gateway", "up", *options.split()]


def test_package_index_of_dotenv_is_pips(tmp_path):
    """As for Docker Compose, a variable of the shell wins."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".env").write_text("GATEWAY_PORT=9000\nPIP_EXTRA_INDEX_URL=http://127.0.0.1:9/cpu?a=b\n")
    assert make(*INDEX, folder=tmp_path) == "http://127.0.0.1:9/cpu?a=b\n"
    assert make(*INDEX, folder=tmp_path, PIP_EXTRA_INDEX_URL="http://127.0.0.1:9/b") == "http://127.0.0.1:9/b\n"


def test_extras_are_installed_only_when_asked_for():
    assert "-e '.[local,heic]'" in make("--dry-run", "--always-make", "up", "EXTRAS=heic")
    assert "-e '.[local]'" in make("--dry-run", "--always-make", "up")


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("3.10", "this is Python 3.10, and the service needs 3.11, 3.12 or 3.13"),
        ("3.14", "this is Python 3.14, and the service needs 3.11, 3.12 or 3.13"),
        (None, "install Python 3.11, 3.12 or 3.13"),
    ],
)
def test_python_that_cannot_run_the_service_is_named(version, sentence, tmp_path):
    """A program stands in for the other Python: it runs the Makefile's check with another version."""
    python = tmp_path / "python"
    if version is not None:
        change = f"import sys; sys.version_info = ({version.replace('.', ', ')}, 0);"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{change} $2"\n')
        python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    found = subprocess.run(
        ["make", "install", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode != 0
    assert sentence in found.stdout + found.stderr
    assert not (tmp_path / ".venv").exists()


def test_help_names_the_port():
    (line,) = [line for line in make("help").splitlines() if line.startswith("up ")]
    assert "PORT=" in line


SUITE = {
    "pytest.ini": "[pytest]\nmarkers =\n  alone\n  long\n",
    "conftest.py": "from tests.workers import pytest_sessionfinish, pytest_testnodedown\n",
    "test_others.py": "import pytest\ndef test_other(): pass\n@pytest.mark.alone\ndef test_alone(): pass\n",
    "test_flaky.py": """
import pathlib

def test_flaky():
    earlier = pathlib.Path("earlier")
    assert earlier.exists() or earlier.touch()
""",
}
FAULTS = {
    "a test fails twice": "def test_fails(): assert False\n",
    "a worker crashes": """
import os, pathlib

def test_crashes_once():
    earlier = pathlib.Path("crash")
    assert earlier.exists() or earlier.touch() or os.kill(os.getpid(), 9)
""",
    "a file cannot be imported": "import nothing_such\n",
    "workers collect different tests": """
import os, pytest

@pytest.mark.parametrize("process", [os.getpid()])
def test_number(process): pass
""",
    "more than five tests fail once": """
import pathlib, pytest

@pytest.mark.parametrize("number", range(6))
def test_fails_once(number):
    earlier = pathlib.Path(f"earlier-{number}")
    assert earlier.exists() or earlier.touch()
""",
    "a test that runs alone fails": "import pytest\n@pytest.mark.alone\ndef test_fails(): assert False\n",
}


def run_suite(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The tests of `make test`, in a folder with these files."""
    for name, text in files.items():
        (folder / name).write_text(text)
    plugins = f"-p no:schemathesis -p no:hypothesispytest --basetemp={folder / 'tmp'}"
    variables = [f"VENV={ROOT / '.venv'}", "ALONE=.", "EXAMPLES="]  # tests/conftest.py has the profiles of EXAMPLES
    command = ["make", "--file", ROOT / "Makefile", "--directory", folder, "test-most", *variables]
    environment = {**os.environ, "PYTEST_ADDOPTS": plugins, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_flaky_test_is_named_and_does_not_fail_make_test(tmp_path):
    ran = run_suite(tmp_path, SUITE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "FAILED test_flaky.py::test_flaky" in ran.stdout
    assert "PASSED test_flaky.py::test_flaky" in ran.stdout.partition("failed tests once more, without others:")[2]


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_fail_make_test(tmp_path, fault):
    ran = run_suite(tmp_path, {**SUITE, "earlier": "", "test_fault.py": FAULTS[fault]})
    assert ran.returncode != 0, ran.stdout + ran.stderr
    assert "test_fault.py" in ran.stdout


def test_builds_without_cuda():
    """CPU=1 takes them, over another index of the shell; a machine without a GPU is told of it."""
    index = make(*INDEX, "CPU=1", PIP_EXTRA_INDEX_URL="http://127.0.0.1:9/b")
    assert index == "https://download.pytorch.org/whl/cpu\n"
    if not Path("/dev/nvidiactl").exists():
        commands = make("--dry-run", "--always-make", "up", "VENV=build/none", PIP_EXTRA_INDEX_URL="")
        assert 'no NVIDIA GPU here: most of the download is CUDA that nothing loads. "make up CPU=1"' in commands
        assert "no NVIDIA GPU" not in make("--dry-run", "--always-make", "up", "VENV=build/none", "CPU=1")
