"""Files, modules, targets of make and settings that documents name exist."""

import re
from pathlib import Path

import pytest

from gateway.settings import variable
from tests import affected
from tests.docs.test_links import FILES
from tests.processes import PROJECT
from tests.settings import Settings

PAGES = [path for path in FILES if path.name != "CHANGELOG.md"]
GENERATED = {"build", "dist"}
FOLDERS = "|".join(
    path.name for path in PROJECT.iterdir() if path.is_dir() and path.name[0] not in "._" and path.name not in GENERATED
)
TARGETS = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
SETTINGS = {variable(field) for field in Settings.model_fields} | {
    variable("result_lines_file")
}  # of a guide's example


def named(pattern: str, page: Path) -> set[str]:
    return set(re.findall(pattern, page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_names_of_a_page_exist(page):
    paths = named(rf"`((?:{FOLDERS})/[\w./-]+)`", page)
    modules = {name.replace(".", "/") for name in named(r"python -m ((?:bench|tests|deploy)[\w.]*)", page)}
    assert {path for path in paths if not (PROJECT / path).exists() and not (page.parent / path).exists()} == set()
    assert {name for name in modules if not ((PROJECT / name).is_dir() or (PROJECT / f"{name}.py").is_file())} == set()
    assert named(r"(?m)(?:^|`)make ([a-z-]+)\b", page) <= TARGETS
    assert named(r"\bGATEWAY_[A-Z0-9_]+[A-Z0-9]\b", page) <= SETTINGS


def test_files_of_the_architecture_exist():
    """It names files and folders by the end of their path, such as `inference/steps.py`."""
    paths = {path for file in affected.git("ls-files") for path in (file, *map(str, Path(file).parents))}
    ends = {path.split("/", start)[-1] for path in paths for start in range(path.count("/") + 1)}
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`([\w./-]+\.\w+|[\w./-]+(?=/`))", text)) - {"NAME"}
    gone = {name for name in names if "/" in name or name.endswith(".py")} - ends
    assert len(names) > 100
    assert not gone, f"correct these names in ARCHITECTURE.md: {gone}"


ANY_INDEX = re.compile(r"index[-_]url(?:=| +|\", \")https?://(?!127\.|localhost)", re.IGNORECASE)


@pytest.mark.parametrize(
    "folder",
    [
        "gateway",
        "gateway_cli",
        "gateway_decoder",
        "gateway_local",
        "gateway_machine",
        "gateway_models",
        "gateway_plugins",
        "deploy",
        "docs",
    ],
)
def test_no_package_index_is_chosen_for_users(folder):
    """Commands and advice leave the address to the reader: many machines reach one mirror alone."""
    kinds = {".py", ".md", ".yml", ".yaml"}
    paths = [path for path in (PROJECT / folder).rglob("*") if path.suffix in kinds]
    assert len(paths) > 3
    assert [str(path) for path in paths if ANY_INDEX.search(path.read_text())] == []


def test_address_of_a_package_index_would_be_found():
    assert ANY_INDEX.search("pip install torch --index-url https://wheels.example.org/cpu")
    assert not ANY_INDEX.search("pip install --index-url http://127.0.0.1:8080/client/ triton-image-gateway-client")
