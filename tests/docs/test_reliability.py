"""docs/explanation/reliability.md names tests that exist."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
GUIDE = (PROJECT / "docs" / "explanation" / "reliability.md").read_text()
PATHS = list((PROJECT / "tests").rglob("test_*.py"))
FILES = {path.name for path in PATHS}
TESTS = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
DEFINED = {name for path in PATHS for name in TESTS.findall(path.read_text())}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+…?)`", GUIDE))))
def test_test_that_the_guide_names_exists(name):
    beginning, abbreviated, _ = name.partition("…")
    found = [each for each in DEFINED if each == name or (abbreviated and each.startswith(beginning))]
    assert found, f"docs/explanation/reliability.md names {name}"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)", GUIDE))))
def test_file_of_tests_that_the_guide_names_exists(path):
    assert (PROJECT / path).is_file() if "/" in path else path in FILES
