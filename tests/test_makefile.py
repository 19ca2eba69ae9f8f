"""The commands of the Makefile's targets, from `make --dry-run`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str, **environment: str) -> str:
    """The output of a make that was not started by another one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "GATEWAY_"))}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**kept, **environment}, check=True, capture_output=True, text=True
    ).stdout


def started(*arguments: str, **environment: str) -> list[str]:
    """The words of the command with which `make up` ends."""
    return make("--dry-run", "up", *arguments, **environment).splitlines()[-1].split()[1:]


def test_make_up_port_is_the_gateways():
    assert started("PORT=9000") == [".venv/bin/gateway", "up", "--port", "9000"]


def test_exported_port_variable_is_ignored():
    assert started(PORT="9000") == [".venv/bin/gateway", "up"]


def test_make_up_passes_all_options():
    assert started("ARGS=--workers 2") == [".venv/bin/gateway", "up", "--workers", "2"]


def test_help_names_the_port():
    (line,) = [line for line in make("help").splitlines() if line.startswith("up ")]
    assert "PORT=" in line
