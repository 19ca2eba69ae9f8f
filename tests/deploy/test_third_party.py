"""THIRD_PARTY.md lists what is installed, and nothing of it is under the GPL."""

import platform
import re
from email.message import Message
from importlib.metadata import distribution

import pytest

from deploy.generate.third_party import PATH, PROJECT, contained, licence, needed, places, text

OF_GPL = {"libx264", "libx265", "libxvidcore", "libpostproc"}
"""Codecs that wheels contain."""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="other wheels contain other libraries")


@pytest.fixture(scope="module")
def installed() -> dict[str, set[str]]:
    return places()


def test_file_is_up_to_date():
    assert PATH.read_text() == text(), "run: make docs"


def test_nothing_that_is_installed_by_default_is_under_the_gpl(installed):
    for name in set().union(*installed.values()):
        package = distribution(name)
        assert not re.search(r"(?<!L)GPL|General Public|Proprietary", licence(package)), name
        assert OF_GPL.isdisjoint(contained(package)), name


def test_library_inside_a_wheel_is_found():
    """As a package's own licence does not tell."""
    heif = distribution("pillow-heif")
    assert licence(heif) == "BSD-3-Clause"
    assert "libx265" in contained(heif)
    assert all(name in PATH.read_text() for name in contained(heif))


def test_heic_is_installed_only_when_asked_for(installed):
    assert not [place for place, names in installed.items() if "pillow-heif" in names]
    assert "pillow-heif" in needed("triton-image-gateway[heic]")


def test_images_have_what_they_need_and_no_more(installed):
    assert {"redis", "opentelemetry-sdk", "fastapi", "tritonclient", "grpcio"} <= installed["gateway"]
    assert [place for place, names in installed.items() if "torch" in names] == ["triton-cpu", "make up"]
    assert installed["gateway"].isdisjoint({"torchvision", "scikit-image", "matplotlib", "onnxruntime"})
    assert installed["triton"] == {"numpy", "opencv-python-headless", "pillow"}
    assert not [name for names in installed.values() for name in names if name.startswith("nvidia")]


def test_package_without_a_licence_is_refused():
    class Nothing:
        name = "nothing"
        metadata = Message()

    with pytest.raises(LookupError, match="nothing declares no licence"):
        licence(Nothing())


def test_distribution_and_images_carry_the_file():
    assert "THIRD_PARTY.md" in (PROJECT / "pyproject.toml").read_text()
    assert re.search(r"^COPY .*THIRD_PARTY\.md", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)
