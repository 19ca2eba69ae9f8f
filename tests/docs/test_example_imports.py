"""The examples of README and of the guides need only the packages of `make up`."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from deploy.generate.third_party import needed
from tests.processes import PACKAGES, PROJECT

PAGES = [PROJECT / "README.md", PROJECT / "gateway_client" / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
WITH_EXTRAS = {"ray_classify.py": "ray", "spark_classify.py": "spark", "train_digits.py": "converters"}
"""Examples whose docstring says which extra of pyproject.toml to install."""
NOT_INSTALLED = {"ray", "spark"}
"""Extras that developers need not install."""
IN_TRITON = "triton_python_backend_utils"
installed_by, distributions = cache(needed), cache(packages_distributions)


def imported(code: str) -> set[str]:
    """The packages that a program imports; none if it is not Python."""
    try:
        nodes = [*ast.walk(ast.parse(code))]
    except SyntaxError:
        return set()
    names = {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names}


def missing(code: str, requirement: str = "triton-image-gateway[local]") -> set[str]:
    """The imported packages that pip does not install for a requirement."""
    return {
        name
        for name in imported(code) - sys.stdlib_module_names - set(PACKAGES)
        if installed_by(requirement).isdisjoint(map(canonicalize_name, distributions().get(name, [])))
    }


def programs(page: Path) -> Iterator[str]:
    """The code blocks of a page, and the files that its commands write with <<EOF."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        yield block
        yield from re.findall(r"<<\s*'?EOF'?[^\n]*\n(.*?)^EOF$", block, re.DOTALL | re.MULTILINE)


def test_examples_of_pages():
    own = [code for page in PAGES for code in programs(page) if IN_TRITON not in code]
    assert "httpx" in set().union(*map(imported, own))
    assert set().union(*map(missing, own)) == set()
    assert missing("import pytest") == {"pytest"}


@pytest.mark.parametrize("path", sorted((PROJECT / "docs" / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example_programs(path):
    code, extra = path.read_text(), WITH_EXTRAS.get(path.name)
    assert extra is None or f"pip install '.[{extra}]'" in (ast.get_docstring(ast.parse(code)) or "")
    if extra not in NOT_INSTALLED:
        # nearest.py says to install FAISS, which no extra has.
        assert missing(code, f"triton-image-gateway[local{f',{extra}' if extra else ''}]") <= {"faiss"}
