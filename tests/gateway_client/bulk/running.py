"""Runs `gateway classify`."""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway_cli.main import main
from tests import warm
from tests.processes import environment


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gateway_cli", "classify", *map(str, arguments)]


def start(*arguments: object, **variables: str) -> warm.Process:
    """Start the command in a fork of a process that has imported it, without its output."""
    with Path(os.devnull).open("wb") as nothing:
        return warm.start(
            "from gateway_cli.main import main; main()",
            ["classify", *map(str, arguments)],
            environment={**environment(), **variables},
            stdout=nothing.fileno(),
            stderr=nothing.fileno(),
        )


@dataclass(frozen=True)
class Done:
    """The outcome of a command."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object) -> Done:
    """Run the command in this process: starting another takes longer than most tests."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["gateway", "classify", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def folder_of(folder: Path, count: int, content: bytes) -> Path:
    """Write `count` images to folders of 100 images each."""
    for number in range(count):
        path = folder / f"{number // 100:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
