"""The commands of the tutorials and guides about models run in order and print the output that these show."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from tests.docs import test_own_repository
from tests.gateway.plugins.tensors import test_on_triton

PROJECT = Path(__file__).parents[2]
TUTORIALS = [
    *(PROJECT / "docs" / "tutorials" / name for name in ("own-model.md", "in-production.md")),
    *(PROJECT / "docs" / "guides" / name for name in ("postprocess.md", "existing-triton.md")),
]
ALREADY_THERE: dict[str, tuple[Callable[[Path], object], ...]] = {
    "existing-triton": (test_own_repository.write_repository, test_on_triton.write_models),
}
"""Code that writes the files that the reader of a guide has."""
HOME = "/home/you/flowers"
"""Where the tutorial's reader works."""
CHECKOUT = "/home/you/triton-image-gateway"
STARTED = {
    "gateway up ": "Ctrl-C stops everything",
    "gateway triton run ": "Triton has loaded its models",
    "gateway serve": '"event": "triton_ready"',
}
"""Commands that keep running during the next ones, and a part of the line that shows that they have started."""
PORTS = ("8080", "8001", "8082", "8083")
"""The values of the tutorial."""
ANY_LINES = "…"


@dataclass(frozen=True)
class Command:
    """A command of the tutorial and the lines that it prints."""

    line: int
    text: str
    output: tuple[str, ...]

    @property
    def started(self) -> str | None:
        """Part of the line that says that the command has started; None for a command that ends."""
        return next((line for command, line in STARTED.items() if command in self.text), None)


def files() -> dict[str, str]:
    """The files that readers write: blocks of Python or YAML after a line that ends with a name and a colon."""
    texts = "\n".join(tutorial.read_text() for tutorial in TUTORIALS)
    return dict(re.findall(r"`([\w.]+)`:\n\n```(?:python|yaml)\n(.*?)```", texts, re.DOTALL))


def commands(tutorial: Path) -> list[Command]:
    """Every command of a console block: it starts with $, continues after a backslash, and its output follows."""
    found: list[Command] = []
    inside = False
    for number, line in enumerate(tutorial.read_text().splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            found.append(Command(number, line.removeprefix("$ "), ()))
        elif inside and found[-1].text.endswith("\\") and not found[-1].output:
            found[-1] = Command(found[-1].line, f"{found[-1].text}\n{line}", ())
        elif inside:
            found[-1] = Command(found[-1].line, found[-1].text, (*found[-1].output, line))
    return found


@dataclass
class Reader:
    """A reader who follows the tutorial in a temporary folder, on free ports."""

    folder: Path
    ports: dict[str, str]
    stays: ExitStack
    exported: dict[str, str] = field(default_factory=dict)

    def run(self, command: Command) -> list[str]:
        """Run a command; return its output with the tutorial's ports and paths."""
        here = self._here(command.text)
        if here.startswith("export "):
            self.exported.update(variable.split("=", 1) for variable in shlex.split(here)[1:])
            return []
        if command.started is not None:
            printed = self.stays.enter_context(self._started(command, command.started))
        else:
            done = subprocess.run(
                ["bash", "-c", here],
                cwd=self.folder,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=240,
                check=False,
            )
            printed = done.stdout
        return [line.rstrip() for line in self._there(printed).splitlines()]

    @contextmanager
    def _started(self, command: Command, line: str) -> Iterator[str]:
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {self._here(command.text)}"],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout as log, ThreadPoolExecutor(1) as threads:
            try:
                printed = _until(log, line)
                threads.submit(log.read)  # it would stop once the pipe is full
                yield printed
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(60)

    def _here(self, text: str) -> str:
        for there, here in self.ports.items():
            text = text.replace(f":{there}", f":{here}").replace(f"-port {there}", f"-port {here}")
        text = text.replace("gateway classify", f"gateway classify --gateway 127.0.0.1:{self.ports['8080']}")
        return text.replace(CHECKOUT, str(PROJECT))

    def _there(self, text: str) -> str:
        for there, here in self.ports.items():
            text = text.replace(f":{here}", f":{there}")
        return text.replace(str(self.folder), HOME).replace(str(PROJECT), CHECKOUT)

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ours = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        return {**ours, "PATH": path, "GATEWAY_PORT": self.ports["8080"], "PYTHONUNBUFFERED": "1", **self.exported}


def _until(log: IO[str], text: str) -> str:
    printed = ""
    for line in log:
        printed += line
        if text in line:
            return printed
    raise AssertionError(f"it ended before it said {text!r}:\n{printed}")


@pytest.fixture
def reader(tmp_path) -> Iterator[Reader]:
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    with ExitStack() as stays:
        with ExitStack() as taken:  # until each has a different port
            sockets = [taken.enter_context(socket.socket()) for _ in PORTS]
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            ports = {there: str(each.getsockname()[1]) for there, each in zip(PORTS, sockets, strict=True)}
        yield Reader(tmp_path, ports, stays)


def numbers_apart(line: str) -> str:
    """A line without values that differ between machines and runs: times, speeds, scores."""
    line = re.sub(r'"since":"[^"]*","by":"[^"]*"', "#", line)
    line = re.sub(r"\d+(\.\d+e[+-]\d+|e[+-]\d+|\.\d+)", "#", line)
    return re.sub(r" +", " ", line).strip()


def said(expected: tuple[str, ...], printed: list[str]) -> bool:
    """Whether lines were printed as they stand in the tutorial, where … is for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == ANY_LINES else re.escape(numbers_apart(line)) + r"\n" for line in expected
    )
    return re.fullmatch(pattern, "".join(f"{numbers_apart(line)}\n" for line in printed)) is not None


@pytest.mark.triton
@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda tutorial: tutorial.stem)
def test_tutorial_commands_print_their_documented_output(reader, tutorial):
    followed = commands(tutorial)
    assert len(followed) > 3
    for write in ALREADY_THERE.get(tutorial.stem, ()):
        write(reader.folder)
    shutil.copy(PROJECT / "docs" / "examples" / "cat.jpg", reader.folder)
    for command in followed:
        printed = reader.run(command)
        wanted = "\n".join(command.output)
        assert said(command.output, printed), (
            f"line {command.line}: {command.text}\nshould print\n{wanted}\nand prints\n" + "\n".join(printed)
        )
