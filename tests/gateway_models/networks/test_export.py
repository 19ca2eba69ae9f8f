from pathlib import Path

import pytest
import torch

from bench.repository import MOBILENET_V3_SMALL
from gateway.triton.configs import parameters, read_model_config
from gateway_models.networks.errors import ModelError
from gateway_models.networks.export import EFFICIENTNET_LITE0, check_preprocessing, export, export_default, read_stamp
from gateway_models.networks.torchscript import export_torchscript
from tests.gateway_models.networks.special_networks import Calling
from tests.shipped import copy_models


@pytest.fixture
def empty_repository(tmp_path) -> Path:
    return copy_models(tmp_path / "models", "model.pt", "labels.txt")


def test_default_model_is_written_with_its_labels_and_only_once(model_repository):
    said = []
    path = export_default(model_repository, said.append)
    labels = (model_repository / "classifier" / "labels.txt").read_text().splitlines()
    assert said == []
    assert path.stat().st_size > 10_000_000
    assert (len(labels), labels[0], labels[285], labels[967]) == (1000, "tench", "Egyptian cat", "espresso")


def configure_runtime(repository: Path, line: str) -> None:
    """The configuration of the default model, with this line about its runtime and no other."""
    path = repository / "ensemble_model" / "config.pbtxt"
    kept = [each for each in path.read_text().splitlines() if "cpu_runtime" not in each]
    path.write_text("\n".join([*kept, line]))


@pytest.mark.long
def test_another_model_takes_the_place_of_the_one_before(empty_repository):
    """Its runtime is written into the configuration, also into one without it."""
    said = []
    configure_runtime(empty_repository, "")
    path = export(MOBILENET_V3_SMALL, empty_repository, said.append)
    first = path.stat().st_mtime_ns
    config = empty_repository / "ensemble_model" / "config.pbtxt"
    assert parameters(read_model_config(config))["cpu_runtime"] == "onnxruntime"
    assert "mobilenet-v3-small" in (read_stamp(path) or "")
    export(MOBILENET_V3_SMALL, empty_repository, said.append)
    assert len(said) == 2  # what it does, and what runs the network on a CPU
    assert path.stat().st_mtime_ns == first
    configure_runtime(empty_repository, 'parameters { key: "cpu_runtime" value { string_value: "torchscript" } }')
    path.unlink()
    export(MOBILENET_V3_SMALL, empty_repository, said.append)
    assert len(said) == 4
    assert parameters(read_model_config(config))["cpu_runtime"] == "onnxruntime"
    assert len(read_model_config(config).ensemble_scheduling.step) == 2
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["cpu.json", "cpu.onnx", "model.pt"]


def test_preprocessing_that_does_not_fit_the_model_is_named(empty_repository):
    path = empty_repository / "preprocessor" / "config.pbtxt"
    path.write_text(path.read_text().replace('"bicubic"', '"bilinear"').replace('"0.5,0.5,0.5"', '"0.50, 0.5, 0.5"'))
    with pytest.raises(ModelError, match="interpolation is 'bilinear' and should be 'bicubic'") as failure:
        check_preprocessing(EFFICIENTNET_LITE0, empty_repository)
    assert "mean" not in str(failure.value)


def test_missing_or_unreadable_configuration_is_named(empty_repository, tmp_path):
    """The error has the line of the fault."""
    with pytest.raises(ModelError, match=r"preprocessor/config\.pbtxt"):
        export_default(tmp_path / "nothing", print)
    (empty_repository / "preprocessor" / "config.pbtxt").write_text('name: "preprocessor"\nbackend "python"\n')
    with pytest.raises(ModelError, match=r"config\.pbtxt: 2:9"):
        export_default(empty_repository, print)


def test_export_whose_answers_differ_is_refused_and_leaves_the_old_file(tmp_path):
    by_its_size = Calling(lambda scores, images: scores * int(images.shape[0]))  # which tracing freezes
    path = tmp_path / "model.pt"
    path.write_bytes(b"the model before")
    with pytest.raises(ModelError, match="differ from the eager model's"):
        export_torchscript(by_its_size, torch.rand(3, 3, 8, 8), path)
    assert path.read_bytes() == b"the model before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.pt"]


def test_stamp_of_a_file_that_is_no_archive_is_none(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"weights?")
    assert read_stamp(tmp_path / "model.pt") is None
    assert read_stamp(tmp_path / "none.pt") is None
