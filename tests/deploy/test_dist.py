"""The packages of `make dist`, which itself tests that they serve and classify."""

import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from deploy.dist import PROJECT, build, package_chart, wheel, write_bom
from gateway import __version__
from tests.processes import python


def test_tag_of_another_version_is_refused():
    refused = python("-m", "deploy.dist", "--tag", "v99.0", code=1)
    assert f"the tag is v99.0, and gateway/__init__.py says {__version__}" in refused.stderr


@pytest.mark.long
def test_distributions_have_their_version_and_no_weights(tmp_path):
    """An sdist and a wheel each; the wheel has licences, models and a sample, and the sdists have no tests."""
    build(tmp_path, isolated=False)
    for name in ("triton_image_gateway", "triton_image_gateway_client", "exact_resize"):
        assert wheel(tmp_path, name).name.startswith(f"{name}-{__version__}-")
        assert (tmp_path / f"{name}-{__version__}.tar.gz").exists()
    assert "-cp311-abi3-" in wheel(tmp_path, "exact_resize").name
    with zipfile.ZipFile(wheel(tmp_path, "triton_image_gateway")) as archive:
        names = archive.namelist()
    information = f"triton_image_gateway-{__version__}.dist-info/licenses"
    assert {f"{information}/LICENSE", f"{information}/THIRD_PARTY.md"} <= set(names)
    assert "gateway_local/shipped/triton_models/preprocessor/1/model.py" in names
    assert "gateway_local/shipped/docs/examples/cat.jpg" in names
    assert not [name for name in names if name.endswith(("model.pt", "labels.txt", ".pyc"))]
    for path in tmp_path.glob("*.tar.gz"):
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
