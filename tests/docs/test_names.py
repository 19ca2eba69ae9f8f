"""Documents name what exists: links, files, modules, targets of make, settings, routes, tests, formats of images.

`make site` checks the links as well, in more time; the site is built without a network.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app import create_app
from gateway.ingest.image_formats import accepted_formats
from gateway.settings import variable
from gateway.values.variables import NO_SETTINGS
from gateway_client.images import IMAGE_SUFFIXES
from tests import affected
from tests.doubles.backend import StubBackend
from tests.processes import PROJECT
from tests.settings import Settings

FILES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "gateway_client/*.md", "native/*.md")
    for path in PROJECT.glob(pattern)
)
PAGES = [path for path in FILES if path.name != "CHANGELOG.md"]
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
GENERATED = {"build", "dist"}
FOLDERS = "|".join(
    path.name for path in PROJECT.iterdir() if path.is_dir() and path.name[0] not in "._" and path.name not in GENERATED
)
TARGETS = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
OF_AN_EXAMPLE = variable("result_lines_file")
SETTINGS = {variable(field) for field in Settings.variables()} | {OF_AN_EXAMPLE} | NO_SETTINGS


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


def named(pattern: str, page: Path) -> set[str]:
    return set(re.findall(pattern, page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_names_of_a_page_exist(page):
    paths = named(rf"`((?:{FOLDERS})/[\w./-]+)`", page)
    modules = {name.replace(".", "/") for name in named(r"python -m ((?:bench|tests|deploy)[\w.]*)", page)}
    assert {path for path in paths if not (PROJECT / path).exists() and not (page.parent / path).exists()} == set()
    assert {name for name in modules if not ((PROJECT / name).is_dir() or (PROJECT / f"{name}.py").is_file())} == set()
    assert named(r"(?m)(?:^|`)make ([a-z-]+)\b", page) <= TARGETS
    assert named(r"```\n\$ .+", page) == set(), "a block of commands starts with ```console"
    assert named(r"\bGATEWAY_[A-Z0-9_]+[A-Z0-9]\b", page) <= SETTINGS


def test_reference_names_every_route(tmp_path):
    """Routes that are not in the OpenAPI document belong to the web page."""
    keys = tmp_path / "keys"
    keys.write_text(f"admin:{'0' * 64}\n")
    paths = create_app(Settings(_env_file=None, admin_keys_file=keys), StubBackend()).openapi()["paths"]
    pages = "\n".join(page.read_text() for page in (PROJECT / "docs" / "reference").rglob("*.md"))
    missing = {path for path in paths if path not in pages}
    assert "/models/{name}/load" in paths
    assert not missing, f"describe {missing} in docs/reference/http-api.md, or in another page there"


def test_guide_to_files_and_page_have_each_format():
    """The page offers files that browsers do not know as images.

    Not HEIC: a phone converts its images to JPEG for a page that does not ask for HEIC.
    """
    lines = (PROJECT / "docs/reference/images.md").read_text().splitlines()
    rows = {line.split("|")[1].strip().partition(" ")[0] for line in lines if line.startswith("| ")}
    assert {name.partition(" ")[0] for name in accepted_formats().replace(" or ", ", ").split(", ")} <= rows
    page = (PROJECT / "gateway/plugins/page/static/index.html").read_text()
    offered = page.partition('accept="')[2].partition('"')[0].split(",")
    assert "image/*" in offered
    assert set(offered) - {"image/*"} <= IMAGE_SUFFIXES - {".heic", ".heif"}


def test_files_of_the_architecture_exist():
    """It names files and folders by the end of their path, such as `inference/steps.py`."""
    paths = {path for file in affected.git("ls-files") for path in (file, *map(str, Path(file).parents))}
    ends = {path.split("/", start)[-1] for path in paths for start in range(path.count("/") + 1)}
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`([\w./-]+\.\w+|[\w./-]+(?=/`))", text)) - {"NAME"}
    gone = {name for name in names if "/" in name or name.endswith(".py")} - ends
    assert len(names) > 70
    assert not gone, f"correct these names in ARCHITECTURE.md: {gone}"


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-c", "docs", "-E", "-W", "--keep-going", "-q", source, site],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.long
def test_site_is_built_and_needs_no_network(tmp_path):
    done = build(PROJECT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = [path.read_text() for path in (tmp_path / "site").rglob("*.html")]
    assert len(pages) > 45
    assert not [page for page in pages if '<script src="http' in page or 'rel="stylesheet" href="http' in page]
    assert "POST" in (tmp_path / "site/_static/openapi/schema.js").read_text()
