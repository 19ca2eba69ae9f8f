"""The documentation's site: it builds without a network, and not with a broken link."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PROJECT

pytestmark = pytest.mark.long


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-c", "docs", "-E", "-W", "--keep-going", "-q", source, site],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_site_is_built_and_needs_no_network(tmp_path):
    done = build(PROJECT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = [path.read_text() for path in (tmp_path / "site").rglob("*.html")]
    assert len(pages) > 60
    assert not [page for page in pages if '<script src="http' in page or 'rel="stylesheet" href="http' in page]
    assert "POST" in (tmp_path / "site/_static/openapi/schema.js").read_text()


def test_broken_links_are_errors(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(
        "# Page\n[a](no-page.md) [b](#no-heading) [c](../no-file.py) [d](index.md#none)\n"
    )
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    for target in ("no-page.md", "no-heading", "../no-file.py", "'none'"):
        assert target in done.stderr
