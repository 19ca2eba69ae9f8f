"""README tells the truth about the code."""

import re
import runpy
from pathlib import Path

import pytest

from tests.processes import PROJECT

README = (PROJECT / "README.md").read_text()
TABLES = runpy.run_path(str(PROJECT / "docs" / "tables.py"))


def test_the_tables_are_those_of_the_code():
    assert TABLES["with_tables"](README) == README, "run: make docs"


def test_every_error_code_is_told_in_the_error_modules_tree():
    from gateway import errors

    for error in TABLES["error_classes"](errors.GatewayError):
        assert re.search(rf"{error.__name__} +{int(error.status)} {error.code}\b", errors.__doc__), error


@pytest.mark.parametrize(
    "page", [path.relative_to(PROJECT) for path in (*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md"))], ids=str
)
def test_every_link_leads_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#\s]+)", (PROJECT / page).read_text()):
        if "://" not in target:
            assert (PROJECT / page.parent / target).exists(), target
