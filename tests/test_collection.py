"""Collecting the tests imports nothing that takes long, since each worker does it; and no test only waits."""

import ast
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from tests import affected
from tests.postponed import Postponed, evaluated

# Indented: imports at the beginning of a line count as this file's, and `make check` would leave it out.
USED = """
    import pytest
    import safetensors
    from safetensors import SafetensorError as Error, torch

    ERROR = Error("as a constant")


    @pytest.mark.parametrize("error", [Error("as a parameter")])
    def test_is_imported(error):
        assert {type(each) for each in (error, ERROR)} == {safetensors.SafetensorError}
        assert torch.save_file.__module__ == "safetensors.torch"
"""


def collected(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest on these files, with what postpones imports alone."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.postponed", "-p", "no:cacheprovider"]
    command += [f"--rootdir={folder}", str(folder)]  # which pytest guesses otherwise, from the folders above both
    return subprocess.run(command, cwd=affected.PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_import_waits_for_the_test(tmp_path):
    run = collected(tmp_path, test_used=USED)
    assert (run.returncode, "1 passed" in run.stdout) == (0, True), run.stdout


REFUSED = {
    "conftest": "import safetensors",
    "helper": "from matplotlib import figure",
    "test_it": """
        from argparse import Namespace
        from functools import partial

        import helper
        import pytest
        from matplotlib import figure

        DRAWN = partial(print, figure)
        OBJECT = Namespace(on=figure)
        NESTED = {"a": [(figure,)]}


        class Drawing:
            on = [figure]


        def plotted(on=figure): ...


        @pytest.mark.parametrize("draw", [figure, [figure], partial(print, figure)], ids=["itself", "list", "partial"])
        def test_drawn(draw): ...
    """,
}


def test_import_while_collecting_fails_the_run(tmp_path):
    run = collected(tmp_path, **REFUSED)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    for refusal in (
        "safetensors is imported",
        "helper imports matplotlib.figure: import it within functions",
        *(
            f"test_it.{name} contains what is imported later: make it within functions"
            for name in ("DRAWN", "OBJECT", "NESTED", "Drawing", "plotted")
        ),
        "a parameter of test_it.py::test_drawn[partial] contains what is imported later: make it within the test",
    ):
        assert refusal in run.stderr
    assert "test_drawn[itself]" not in run.stderr
    assert "test_drawn[list]" not in run.stderr


def test_stand_in_has_each_member_but_no_truth():
    stand_in = Postponed("Kind.A", lambda: SimpleNamespace(value=3))
    assert evaluated({"a": (stand_in.value,)}) == {"a": (3,)}
    with pytest.raises(TypeError, match="whether it is true is not known yet"):
        bool(stand_in)


def test_check_can_choose_most_files():
    """It leaves out what imports torch, also through other modules; a helper that does would leave out hundreds."""
    near = affected.distances(["tests/conftest.py"], affected.sources())
    assert len(near) > 100
    assert "tests/test_collection.py" in near


MAY_SLEEP = {
    "tests/doubles/": "a double that is slow on purpose",
    "tests/gateway/server/test_slow_clients.py": "a client that is slow on purpose",
}


def fixed_sleeps(source: str) -> list[int]:
    """The lines of sleeps that no loop repeats until a condition holds; sleep(0) is one turn of the event loop."""
    lines = []

    def visit(node: ast.AST, *, in_loop: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            in_loop = False
        if isinstance(node, ast.While):
            in_loop = True
        match node:
            case ast.Call(
                func=ast.Attribute(attr="sleep", value=ast.Name(id="time" | "asyncio" | "anyio")), args=[seconds]
            ):
                if not in_loop and not (isinstance(seconds, ast.Constant) and seconds.value == 0):
                    lines.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, in_loop=in_loop)

    visit(ast.parse(source), in_loop=False)
    return lines


def test_tests_wait_for_conditions():
    """A fixed sleep is too short on a busy machine, and too long on others."""
    assert fixed_sleeps("time.sleep(1)\nwhile not done():\n    asyncio.sleep(0.1)\nanyio.sleep(seconds)") == [1, 4]
    paths = [path for path in affected.git("ls-files", "tests/*.py") if not path.startswith(tuple(MAY_SLEEP))]
    sources = {path: (affected.PROJECT / path).read_text() for path in paths}
    found = {path: fixed_sleeps(source) for path, source in sources.items() if "sleep(" in source}
    assert not any(found.values()), found
