"""What importing the tests loads, which each worker does before it runs its share; and that no test only waits."""

import ast
import subprocess
import sys

import pytest

from tests import affected

HEAVY = ("torch", "onnx", "onnxruntime", "sklearn", "skimage", "matplotlib", "jsonschema")
CODE = f"""
import sys, pytest

code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]])
sys.exit(" ".join(name for name in {HEAVY} if name in sys.modules) or code)
"""


@pytest.mark.slow
def test_files_of_make_check_import_neither_torch_nor_what_takes_as_long():
    sources = {path: (affected.PROJECT / path).read_text() for path in affected.git("ls-files", "*.py")}
    files = affected.distances(["tests/conftest.py"], sources)
    assert len(files) > 100
    run = subprocess.run(
        [sys.executable, "-c", CODE, *files], cwd=affected.PROJECT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-1000:]


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
