"""Tables, and their places in documents."""

import re

import pytest

from bench.output import put
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

PROJECT = DEFAULT_MODEL_REPOSITORY.parent
TEXT = """\
before
<!-- bench.feed: begin -->
old
<!-- bench.feed: end -->
<!-- other: begin -->
kept
<!-- other: end -->
"""
MODELS = ("mobilenet-v3-small", "efficientnet-lite0")
COMMANDS = {
    "bench/RESULTS.md": {*(f"bench of {model}" for model in MODELS), "bench.feed", "bench.curve"},
    "docs/explanation/performance.md": {"bench --peers"},
    "README.md": {"bench --peers in brief"},
}


def test_table_replaces_the_one_between_its_markers(tmp_path):
    document = tmp_path / "page.md"
    document.write_text(TEXT)
    put(document, "bench.feed", "| new |\n")
    assert document.read_text() == TEXT.replace("old", "| new |")
    put(document, "bench.feed", "old\n")
    assert document.read_text() == TEXT


@pytest.mark.parametrize(
    ("page", "commands"), COMMANDS.items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_that_writes_a_table_has_markers(tmp_path, page, commands):
    document = tmp_path / "page.md"
    document.write_text(text := (PROJECT / page).read_text())
    assert set(re.findall(r"<!-- (.+): begin -->", text)) >= commands
    for command in commands:
        put(document, command, "| new |\n")
    assert document.read_text().count("| new |") == len(commands)
