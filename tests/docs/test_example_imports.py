"""The examples of README and of the guides run with what `make up` installs, and nothing else."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from deploy.generate.third_party import needed
from tests.processes import PROJECT

PAGES = [PROJECT / "README.md", PROJECT / "gateway_client" / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
MAKE_UP = "triton-image-gateway[local]"
CUDA = ("nvidia-", "cuda-", "triton")
NOT_INSTALLED = {"ray", "spark"}
"""Extras that developers need not install."""
WITH_EXTRAS = {"ray_classify.py": "ray", "spark_classify.py": "spark", "train_digits.py": "converters"}
"""Examples whose docstring says which extra of pyproject.toml to install."""
IN_TRITON = "triton_python_backend_utils"


def imports(code: str) -> list[str]:
    """The import statements of a program; none if it is not Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return []
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def programs(page: Path) -> Iterator[str]:
    """The code blocks of a page, and the files that its commands write with <<EOF."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        yield block
        yield from re.findall(r"<<\s*'?EOF'?[^\n]*\n(.*?)^EOF$", block, re.DOTALL | re.MULTILINE)


def imports_of(page: Path) -> set[str]:
    """The import statements of a page's programs, but for models that run in a process of Triton."""
    own = [code for code in programs(page) if IN_TRITON not in code]
    return {each for code in own for each in imports(code)}


@pytest.fixture(scope="module")
def environment_of(tmp_path_factory) -> Callable[[str], Path]:
    """A folder for sys.path that has only the packages that pip installs for a requirement."""

    @cache
    def linked(requirement: str) -> Path:
        folder = tmp_path_factory.mktemp("site")
        names = {canonicalize_name(package.name) for package in distributions()}
        for name in needed(requirement) | {name for name in names if name.startswith(CUDA)}:
            package = distribution(name)
            for part in {path.parts[0] for path in package.files or [] if path.parts[0] != ".."}:
                source, target = Path(package.locate_file(part)), folder / part
                if source.exists() and not target.exists():
                    target.symlink_to(source)
        return folder

    return linked


def try_imports(statements: list[str], site: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path[:0] = [{str(site)!r}, {str(PROJECT)!r}]\n" + "\n".join(statements)
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False
    )


def test_examples_of_pages(environment_of):
    statements = {each for page in PAGES for each in imports_of(page)}
    assert {"import httpx", "from gateway_client import Gateway"} <= statements
    run = try_imports(sorted(statements), environment_of(MAKE_UP))
    assert run.returncode == 0, run.stderr
    # A package of the developers is not found, also behind a package that is a requirement.
    for statement in ("import pytest", "import tritonclient.http"):
        assert "ModuleNotFoundError" in try_imports([statement], environment_of(MAKE_UP)).stderr


@pytest.mark.parametrize("path", sorted((PROJECT / "docs" / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example_programs(path, environment_of):
    extra = WITH_EXTRAS.get(path.name)
    if extra is not None:
        assert extra in tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert f"pip install '.[{extra}]'" in (ast.get_docstring(ast.parse(path.read_text())) or "")
    if extra not in NOT_INSTALLED:
        requirement = MAKE_UP if extra is None else f"triton-image-gateway[local,{extra}]"
        # nearest.py says to install FAISS, which no extra has.
        needed_here = [each for each in imports(path.read_text()) if each != "import faiss"]
        run = try_imports(needed_here, environment_of(requirement))
        assert run.returncode == 0, run.stderr
