"""What `make dist` builds; that it then serves and classifies, `make dist` itself shows."""

import hashlib
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from deploy.dist import PROJECT, build, package_chart, wheel, write_bom, write_sums
from deploy.generate.third_party import extras_of_image
from gateway import __version__
from tests.processes import python


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(folder, isolated=False)
    return folder


def test_tag_of_another_version_is_refused():
    refused = python("-m", "deploy.dist", "--tag", "v99.0", code=1)
    assert f"the tag is v99.0, and gateway/__init__.py says {__version__}" in refused.stderr


@pytest.mark.long
def test_every_distribution_has_an_sdist_and_a_wheel_of_the_version(built):
    for name in ("triton_image_gateway", "triton_image_gateway_client", "exact_resize"):
        assert wheel(built, name).name.startswith(f"{name}-{__version__}-")
        assert (built / f"{name}-{__version__}.tar.gz").exists()
    assert "-cp311-abi3-" in wheel(built, "exact_resize").name


@pytest.mark.long
def test_wheel_has_licences_models_and_a_sample_but_no_weights(built):
    with zipfile.ZipFile(wheel(built, "triton_image_gateway")) as archive:
        names = archive.namelist()
    information = f"triton_image_gateway-{__version__}.dist-info/licenses"
    assert {f"{information}/LICENSE", f"{information}/THIRD_PARTY.md"} <= set(names)
    assert "gateway_local/shipped/triton_models/preprocessor/1/model.py" in names
    assert "gateway_local/shipped/examples/cat.jpg" in names
    assert not [name for name in names if name.endswith(("model.pt", "labels.txt", ".pyc"))]


@pytest.mark.long
def test_sdists_have_no_weights_and_no_tests(built):
    for path in built.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            names = archive.getnames()
        assert not [name for name in names if name.endswith("model.pt") or "/tests/" in name]


def test_chart_package_is_the_chart(tmp_path):
    package_chart(tmp_path)
    (archive,) = tmp_path.glob("triton-image-gateway-*.tgz")
    with tarfile.open(archive) as packed:
        inside = packed.extractfile("triton-image-gateway/Chart.yaml")
        assert yaml.safe_load(inside)["appVersion"] == __version__
        assert "triton-image-gateway/values.schema.json" in packed.getnames()


def test_kernel_is_compared_with_pillow_where_its_wheels_are_built():
    pytest.importorskip("exact_resize")
    assert python(PROJECT / "native" / "try_wheel.py").stdout.startswith("equal to Pillow ")


@pytest.mark.long
def test_bom_names_what_is_installed(tmp_path):
    write_bom(Path(sys.executable), tmp_path / "bom.json")
    text = (tmp_path / "bom.json").read_text()
    document = json.loads(text)
    assert document["bomFormat"] == "CycloneDX"
    versions = {each["name"].lower().replace("_", "-"): each.get("version") for each in document["components"]}
    assert f"\nfastapi=={versions['fastapi']}\n" in (PROJECT / "constraints.txt").read_text()
    subject = document["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("triton-image-gateway", __version__)
    (needs,) = [each["dependsOn"] for each in document["dependencies"] if each["ref"] == subject["bom-ref"]]
    assert any(need.startswith("fastapi") for need in needs)
    assert "file://" not in text
    assert str(PROJECT) not in text


def test_sums_are_those_of_the_files(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"wheel")
    write_sums(tmp_path)
    write_sums(tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text() == f"{hashlib.sha256(b'wheel').hexdigest()}  a.whl\n"


def test_bom_of_the_image_has_the_extras_of_the_dockerfile(dockerfile):
    assert f"EXTRAS={extras_of_image()}" in dockerfile.stages["gateway-build"].all("ARG")
