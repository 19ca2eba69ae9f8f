"""The suite itself: its collection imports nothing that takes long, no test only waits, no loop disturbs the next."""

import ast
import asyncio
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import grpc
import pytest

from tests import affected
from tests.loops import Loop
from tests.processes import free_port

# Indented: imports at the beginning of a line count as this file's, and `make check` would leave it out.
USED = """
    import pytest
    import safetensors
    from safetensors import SafetensorError as Error, torch

    ERROR = Error("as a constant")


    @pytest.mark.parametrize("errors", [[Error("in a parameter")]])
    def test_is_imported(errors):
        assert {type(each) for each in (*errors, ERROR)} == {safetensors.SafetensorError}
        assert torch.save_file.__module__ == "safetensors.torch"
"""

KEPT = """
    from functools import partial

    import pytest
    from safetensors import torch

    NESTED = {"a": [torch]}

    def save(by=torch):
        by.save_file()

    READS = [lambda: NESTED["a"][0].save_file, lambda: NESTED["a"] == [torch], save, partial(save, torch)]

    @pytest.mark.parametrize("read", READS)
    def test_reads(read):
        read()
"""


def collected(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest on these files, with what postpones imports alone."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.postponed", "-p", "no:cacheprovider"]
    command += [f"--rootdir={folder}", str(folder)]  # which pytest guesses otherwise, from the folders above both
    return subprocess.run(command, cwd=affected.PROJECT, capture_output=True, text=True, check=False)


REFUSED = {
    "conftest": "import safetensors",
    "helper": "from matplotlib import figure",
    "test_it": "import helper",
}


def test_import_while_collecting_fails_the_run(tmp_path):
    run = collected(tmp_path, **REFUSED)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "safetensors is imported" in run.stderr
    assert "helper imports matplotlib.figure: import it within functions" in run.stderr


@pytest.mark.slow
def test_import_waits_for_the_test(tmp_path):
    """A name that is within something else stays postponed, and fails the test that uses it."""
    run = collected(tmp_path, test_used=USED, test_kept=KEPT)
    assert "4 failed, 1 passed" in run.stdout, run.stdout
    assert "make what contains it within functions" in run.stdout
    assert "whether it is true is not known yet" in run.stdout


def test_check_can_choose_most_files():
    """It leaves out what imports torch, also through other modules; a helper that does would leave out hundreds."""
    near = affected.distances(["tests/conftest.py"], affected.sources())
    assert len(near) > 100
    assert "tests/test_collection.py" in near


MAY_SLEEP = {
    "tests/doubles/": "a double that is slow on purpose",
    "tests/gateway/server/test_slow_clients.py": "a client that is slow on purpose",
}


SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep"}


def fixed_sleeps(source: str) -> list[int]:
    """The lines of sleeps that no loop repeats until a condition holds; sleep(0) is one turn of the event loop."""
    tree = ast.parse(source)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    repeated = {node for loop in loops for node in ast.walk(loop)}
    sleeps = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and ast.unparse(each.func) in SLEEPS]
    return sorted(each.lineno for each in sleeps if each not in repeated and ast.unparse(each.args[0]) != "0")


def test_tests_wait_for_conditions():
    """A fixed sleep is too short on a busy machine, and too long on others."""
    assert fixed_sleeps("time.sleep(1)\nwhile not done():\n    asyncio.sleep(0.1)\nanyio.sleep(seconds)") == [1, 4]
    paths = [path for path in affected.git("ls-files", "tests/*.py") if not path.startswith(tuple(MAY_SLEEP))]
    sources = {path: (affected.PROJECT / path).read_text() for path in paths}
    found = {path: fixed_sleeps(source) for path, source in sources.items() if "sleep(" in source}
    assert not any(found.values()), found


def test_event_of_a_closed_loop_leaves_the_next_loop_alone():
    unhandled: list[dict[str, Any]] = []
    tasks: list[asyncio.Task[None]] = []
    earlier, later = Loop(), Loop()
    later.set_exception_handler(lambda _, context: unhandled.append(context))

    def channel() -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{free_port()}")

    async def begin_to_wait() -> grpc.aio.Channel:
        waiting = channel()
        # Unlike a call, this wait goes on in the queue when its task is cancelled, and so outlives the loop.
        tasks.append(asyncio.create_task(waiting.wait_for_state_change(waiting.get_state())))
        await asyncio.sleep(0)
        return waiting

    async def end(waiting: grpc.aio.Channel) -> None:
        async with asyncio.timeout(10), channel():
            await waiting.close()
            while not (earlier.ignored or unhandled):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    with asyncio.Runner(loop_factory=lambda: earlier) as runner:
        waiting = runner.run(begin_to_wait())
    with asyncio.Runner(loop_factory=lambda: later) as runner:
        runner.run(end(waiting))
    assert not unhandled
