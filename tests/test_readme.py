"""The reference pages match the code."""

import re
import runpy

import pytest

from gateway.errors import ImageError
from gateway.plugins import errors_of, installed
from tests.processes import PROJECT

TABLES = runpy.run_path(str(PROJECT / "docs" / "tables.py"))


@pytest.mark.parametrize("name", TABLES["TABLES"])
def test_reference_table_matches_code(name):
    page = (TABLES["REFERENCE"] / f"{name}.md").read_text()
    assert TABLES["with_table"](name, page) == page, "run: make docs"


def test_error_modules_tree_has_every_code():
    from gateway import errors

    for error in errors_of(()):
        assert re.search(rf"{error.__name__} +{int(error.status)} {error.code}\b", errors.__doc__), error


def test_page_repeats_no_image_whose_file_is_at_fault():
    script = (PROJECT / "gateway_plugins" / "page" / "static" / "entry.js").read_text()
    known = re.findall(r'"(\w+)"', re.search(r"FILE_FAULTS = new Set\(\[(.*?)\]", script, re.DOTALL)[1])
    faults = {error.code for error in errors_of(installed()) if issubclass(error, ImageError)}
    assert set(known) == faults | {"unreadable_file"}
