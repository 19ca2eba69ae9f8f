"""Relative links in Markdown files lead to files and headings that exist; `make site` checks the same, in more time."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FILES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "examples/**/*.md", "gateway_client/*.md", "native/*.md")
    for path in PROJECT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The fragments that GitHub makes of the headings of a file."""
    headings = HEADING.findall(CODE_BLOCK.sub("", path.read_text()))
    texts = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_links_lead_somewhere(file: Path):
    for path, fragment in LINK.findall(CODE_BLOCK.sub("", file.read_text())):
        if "://" in path or path.startswith("mailto:"):
            continue
        target = file.parent / path if path else file
        assert target.exists(), f"{path} does not exist"
        if fragment and target.suffix == ".md":
            assert fragment in anchors(target), f"{path} has no heading #{fragment}"


def test_list_of_decisions_is_complete():
    folder = PROJECT / "docs" / "adr"
    listed = LINK.findall((folder / "README.md").read_text())
    assert [name for name, _ in listed] == sorted(path.name for path in folder.glob("0*.md"))
