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
from gateway_client import NamedImage
from gateway_client.bulk.sources import Sources
from tests import warm
from tests.processes import environment

TOO_LARGE = "too large"


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

    stdout: str
    stderr: str


def run(*arguments: object, code: int = 0) -> Done:
    """Run the command in this process, as starting another takes longer than most tests; it must exit with `code`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["gateway", "classify", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == code, err.getvalue()
    return Done(out.getvalue(), err.getvalue())


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def outcomes(*sources: object, limit: int = 100_000) -> dict[str, str | bytes]:
    """The content of each image, or why it cannot be read, by the end of its name."""
    found: dict[str, str | bytes] = {}
    for image in Sources(map(str, sources)).images(limit):
        name = image.name.rpartition("/")[2]
        assert name not in found
        found[name] = reading(image, limit)
    return found


def reading(image: NamedImage, limit: int = 100_000) -> str | bytes:
    """The content of an image, or why it cannot be read."""
    try:
        data = image.read()
    except OSError as exc:
        return exc.strerror or str(exc)
    assert len(data) <= limit + 1
    return data if len(data) <= limit else TOO_LARGE


def folder_of(folder: Path, count: int, content: bytes) -> Path:
    """Write `count` images to folders of 100 images each."""
    for number in range(count):
        path = folder / f"{number // 100:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
