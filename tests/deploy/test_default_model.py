"""The archive of the default model, from which images are built without torch."""

import sys
import tarfile
from pathlib import Path

import pytest

from deploy.default_model import PACKED, export, pack
from gateway.findings import Level
from gateway_local.doctor.repository import files, labels, read


@pytest.fixture
def exported(tmp_path) -> Path:
    """A folder with the files that an export writes, and some that Triton and Python leave beside them."""
    folder = tmp_path / "exported"
    for name in (
        "triton_models/classifier/1/model.pt",
        "triton_models/classifier/labels.txt",
        "triton_models/ensemble_model/origin.json",
        "triton_models/preprocessor/config.pbtxt",
        "onnx_models/classifier/config.pbtxt",
        "onnx_models/classifier/configs/sized.pbtxt",
        "onnx_models/preprocessor/1/model.py",
        "onnx_models/preprocessor/1/__pycache__/model.pyc",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "onnx_models/ensemble_model/1").mkdir(parents=True)
    return folder


def test_archive_has_what_is_generated_and_folders_of_versions(exported, tmp_path):
    """Triton loads no ensemble without the empty folder of its version."""
    pack(exported, tmp_path / "a.tgz")
    with tarfile.open(tmp_path / "a.tgz") as archive:
        assert [member.name for member in archive] == [
            "onnx_models",
            "onnx_models/classifier",
            "onnx_models/classifier/config.pbtxt",
            "onnx_models/ensemble_model",
            "onnx_models/ensemble_model/1",
            "onnx_models/preprocessor",
            "onnx_models/preprocessor/1",
            "onnx_models/preprocessor/1/model.py",
            "triton_models/classifier/1",
            "triton_models/classifier/1/model.pt",
            "triton_models/classifier/labels.txt",
            "triton_models/ensemble_model/origin.json",
        ]
        assert (
            archive.extractfile("triton_models/classifier/labels.txt").read() == b"triton_models/classifier/labels.txt"
        )


def test_same_files_make_the_same_archive(exported, tmp_path):
    pack(exported, tmp_path / "a.tgz")
    for path in exported.rglob("*"):
        path.touch()
    pack(exported, tmp_path / "b.tgz")
    assert (tmp_path / "a.tgz").read_bytes() == (tmp_path / "b.tgz").read_bytes()


@pytest.mark.long
def test_exported_repositories_are_complete_and_name_no_folder_of_this_machine(tmp_path):
    exported, unpacked = tmp_path / "exported", tmp_path / "unpacked"
    export(Path(sys.executable), exported)
    pack(exported, tmp_path / "model.tgz")
    with tarfile.open(tmp_path / "model.tgz") as archive:
        archive.extractall(unpacked, filter="data")
    assert all((unpacked / name).exists() for name in PACKED)
    for repository in (exported / "triton_models", unpacked / "onnx_models"):
        configs, found = read(repository)
        findings = (found, files(repository, configs), labels(repository, configs))
        assert {finding.level for finding in findings} == {Level.OK}
    for record in unpacked.rglob("origin.json"):
        assert str(tmp_path) not in record.read_text()
