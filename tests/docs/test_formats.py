"""Wherever users read which formats are accepted, they read what the gateway accepts."""

from pathlib import Path

import pytest

from gateway.ingest.image_formats import FORMATS, accepted_formats

ROOT = Path(__file__).parents[2]
LISTS = {
    "README.md": "and",
    "docs/reference/http-api.md": "or",
    "docs/guides/embeddings.md": "or",
    "gateway/api/static/index.html": ",",
}
"""What joins the last format to the others there."""


@pytest.mark.parametrize(("path", "joined"), LISTS.items(), ids=str)
def test_list_of_formats_matches_the_gateway(path, joined):
    others, _, last = accepted_formats().rpartition(" or ")
    assert f"{others}{joined if joined == ',' else f' {joined}'} {last}" in (ROOT / path).read_text()


def test_guide_to_files_has_a_row_for_each_format():
    rows = {line.split("|")[1].strip().partition(" ")[0] for line in _table(ROOT / "docs/reference/images.md")}
    assert {name.partition(" ")[0] for name in accepted_formats().replace(" or ", ", ").split(", ")} <= rows


def test_page_offers_files_that_browsers_do_not_know_as_images():
    page = (ROOT / "gateway/api/static/index.html").read_text()
    offered = page.partition('accept="')[2].partition('"')[0].split(",")
    decoded = {f".{traits.suffixes[0]}" for traits in FORMATS.values() if traits.suffixes and not traits.passed_on}
    assert {"image/*", "video/*"} <= set(offered)
    assert decoded - {".gif"} <= set(offered)


def _table(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("| ")]
