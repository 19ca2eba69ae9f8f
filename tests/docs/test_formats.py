"""Wherever users read which formats are accepted, they read what the gateway accepts."""

from pathlib import Path

import pytest

from gateway.ingest.image_formats import FORMATS, ImageFormat, accepted_formats

ROOT = Path(__file__).parents[2]
WITHOUT_EXTRAS = {"README.md": " and ", "gateway_plugins/page/static/index.html": ", "}
"""What joins the last format to the others there."""
*OTHERS, LAST = [each.value for each, traits in FORMATS.items() if not traits.package and each is not ImageFormat.VIDEO]


@pytest.mark.parametrize(("path", "joined"), WITHOUT_EXTRAS.items(), ids=str)
def test_list_has_the_formats_of_every_installation(path, joined):
    assert f"{', '.join(OTHERS)}{joined}{LAST}" in (ROOT / path).read_text()


@pytest.mark.parametrize(
    "path", ["docs/reference/http-api.md", "docs/guides/embeddings.md", "docs/tutorials/first-service.md"]
)
def test_list_of_an_error_is_that_of_an_installation_without_extras(path):
    assert f"{', '.join(OTHERS)} or {LAST}" in (ROOT / path).read_text()


def test_guide_to_files_has_a_row_for_each_format():
    rows = {line.split("|")[1].strip().partition(" ")[0] for line in _table(ROOT / "docs/reference/images.md")}
    assert {name.partition(" ")[0] for name in accepted_formats().replace(" or ", ", ").split(", ")} <= rows


def test_page_offers_files_that_browsers_do_not_know_as_images():
    """Not HEIC: a phone converts its images to JPEG for a page that does not ask for HEIC."""
    page = (ROOT / "gateway_plugins/page/static/index.html").read_text()
    offered = page.partition('accept="')[2].partition('"')[0].split(",")
    always = [traits for traits in FORMATS.values() if traits.suffixes and not traits.package]
    decoded = {f".{traits.suffixes[0]}" for traits in always if not traits.passed_on}
    assert not {".heic", ".heif"} & set(offered)
    assert {"image/*", "video/*"} <= set(offered)
    assert decoded - {".gif"} <= set(offered)


def _table(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("| ")]
