"""Runs `gateway classify`."""

import io
import json
import os
import sqlite3
import sys
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from gateway.command_line.main import main
from gateway_client import NamedImage
from gateway_client.bulk.sources import Sources
from tests import warm
from tests.processes import environment

LIMIT, TOO_LARGE = 100_000, "too large"
"""Bytes of an image that are read, and what `reading` gives for more."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gateway", "classify", *map(str, arguments)]


def start(*arguments: object, **variables: str) -> warm.Process:
    """Start the command in a fork of a process that has imported it, without its output."""
    with Path(os.devnull).open("wb") as nothing:
        return warm.start(
            "from gateway.command_line.main import main; main()",
            ["classify", *map(str, arguments)],
            environment={**environment(), **variables},
            stdout=nothing.fileno(),
            stderr=nothing.fileno(),
        )


def run(*arguments: object, code: int = 0) -> str:
    """Run the command in this process, as another takes long to start; it must exit with `code`. Returns its stderr."""
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()), redirect_stderr(err):
        patch.setattr(sys, "argv", ["gateway", "classify", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == code, err.getvalue()
    return err.getvalue()


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def part_of(out: Path) -> list[dict]:
    """The rows so far of an output that is not complete."""
    if not (part := Path(f"{out}.part")).exists():
        return []
    with closing(sqlite3.connect(part)) as table:
        try:
            return [json.loads(row) for (row,) in table.execute("SELECT row FROM rows")]
        except sqlite3.OperationalError:  # it is being created
            return []


def outcomes(*sources: object) -> dict[str, str | bytes]:
    """The content of each image, or why it cannot be read, by the end of its name."""
    found: dict[str, str | bytes] = {}
    for image in Sources(map(str, sources)).images(LIMIT):
        name = image.name.rpartition("/")[2]
        assert name not in found
        found[name] = reading(image)
    return found


def reading(image: NamedImage) -> str | bytes:
    """The content of an image, or why it cannot be read."""
    try:
        data = image.read()
    except OSError as exc:
        return exc.strerror or str(exc)
    assert len(data) <= LIMIT + 1
    return data if len(data) <= LIMIT else TOO_LARGE


def folder_of(folder: Path, count: int, content: bytes) -> Path:
    """Write `count` images to folders of 100 images each."""
    for number in range(count):
        path = folder / f"{number // 100:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
