"""The version stands in gateway/__init__.py, and everything else has it from there."""

import re
import tomllib
from importlib.metadata import version

import pytest
import yaml

from deploy.generate import CHART
from deploy.generate.version import PROJECT, files, semantic
from gateway import __version__


def test_wheels_and_chart_have_the_version_of_the_service():
    for folder in ("", "gateway_client"):
        text = (PROJECT / folder / "pyproject.toml").read_text()
        assert "version" in tomllib.loads(text)["project"]["dynamic"]
    kernel = tomllib.loads((PROJECT / "native" / "pyproject.toml").read_text())
    assert kernel["project"]["version"] == __version__
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (semantic(__version__), __version__)


def test_installed_distribution_has_the_version_of_the_code():
    assert version("triton-image-gateway") == __version__


def test_another_version_reaches_every_file():
    """No file keeps a piece of the former version, and nothing but versions changes."""
    for path, text in files("12.34.5rc6").items():
        before, after = path.read_text().splitlines(), text.splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert changed, path
        for old, new in changed:
            assert re.sub(r"12\.34\.5(rc6|-rc\.6)", __version__, new) == old


@pytest.mark.parametrize(
    ("python", "helm"), [("0.1.0", "0.1.0"), ("1.2.0rc3", "1.2.0-rc.3"), ("1.2.0a1", "1.2.0-a.1"), ("10.0.0", "10.0.0")]
)
def test_chart_gets_a_semantic_version(python, helm):
    assert semantic(python) == helm
