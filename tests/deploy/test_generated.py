"""The parts of a release: generated files, one version everywhere, pins, and no package under the GPL."""

import platform
import re
from importlib.metadata import distribution, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.generate.__main__ import files
from deploy.generate.third_party import contained, licence, needed, places
from deploy.generate.version import files as files_of_version
from gateway import __version__
from tests.processes import PROJECT


def test_every_generated_file_is_up_to_date_and_no_outdated_one_remains():
    generated = dict(files())
    stale = [str(path.relative_to(PROJECT)) for path, text in generated.items() if path.read_text() != text]
    assert not stale, "run: make docs"
    assert set((PROJECT / "deploy" / "kubernetes").iterdir()) <= set(generated)


def test_another_version_reaches_every_file():
    """No file keeps a part of the present version, and nothing but versions changes."""
    for path, text in files_of_version("12.34.5rc6").items():
        before, after = path.read_text().splitlines(), text.splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert changed, path
        for old, new in changed:
            assert re.sub(r"12\.34\.5(rc6|-rc\.6)", __version__, new) == old


EXTRAS = ["", "local", "converters", "openvino", "log", "ray", "otel", "dev", "docs"]


@pytest.fixture(scope="module")
def constraints() -> list[Requirement]:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_every_dependency_has_one_version_within_its_range(constraints, python):
    given: dict[str, str] = {}
    for constraint in constraints:
        if constraint.marker is None or constraint.marker.evaluate({"python_version": python}):
            (specifier,) = constraint.specifier
            assert specifier.operator == "=="
            assert canonicalize_name(constraint.name) not in given, f"{constraint.name} is pinned twice"
            given[canonicalize_name(constraint.name)] = specifier.version
    for requirement in map(Requirement, requires("triton-image-gateway") or []):
        environments = [{"python_version": python, "extra": extra} for extra in EXTRAS]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            assert given[canonicalize_name(requirement.name)] in requirement.specifier, requirement


OF_GPL = {"libx264", "libx265", "libxvidcore", "libpostproc"}
"""Codecs that wheels contain."""


@pytest.fixture(scope="module")
def installed() -> dict[str, set[str]]:
    if platform.machine() != "x86_64":
        pytest.skip("other wheels contain other libraries")
    return places()


def test_nothing_that_is_installed_by_default_is_under_the_gpl(installed):
    for name in set().union(*installed.values()):
        package = distribution(name)
        assert not re.search(r"(?<!L)GPL|General Public|Proprietary", licence(package)), name
        assert OF_GPL.isdisjoint(contained(package)), name


def test_images_have_what_they_need_and_no_more(installed):
    """The decoder of HEIC is an extra."""
    assert not [place for place, names in installed.items() if "pillow-heif" in names]
    assert "pillow-heif" in needed("triton-image-gateway[heic]")
    assert {"redis", "opentelemetry-sdk", "fastapi", "tritonclient", "grpcio"} <= installed["gateway"]
    assert [place for place, names in installed.items() if "torch" in names] == ["triton-cpu", "make up"]
    assert installed["gateway"].isdisjoint({"torchvision", "scikit-image", "matplotlib", "onnxruntime"})
    assert installed["triton"] == {"numpy", "opencv-python-headless", "pillow"}
    assert not [name for names in installed.values() for name in names if name.startswith("nvidia")]
