"""TensorRT engines are served as they are: nothing here can load one, so these files only look like engines."""

import subprocess
import sys

import pytest
from tritonclient.grpc.model_config_pb2 import DataType

from gateway.errors import UserError
from gateway.triton.contract import breaches
from gateway.triton.model_config import read_model_config
from gateway_models.networks.add import add
from gateway_models.networks.file_kinds import FileKind, kind_of, refuse
from gateway_models.networks.originals import original_probabilities
from gateway_models.repository.entry import read_entry
from gateway_models.repository.preprocessing import Preprocessing
from gateway_models.repository.spec import ImageTensor, ModelSpec, Serving

PREPROCESSING = Preprocessing((256,), 224, "bilinear", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CODE = bytes(range(256)) * 16


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("cat\ndog\n")
    return path


@pytest.fixture(params=[b"ftrt", b"ptrt"])
def engine(request, tmp_path):
    path = tmp_path / "flowers.engine"
    path.write_bytes(request.param + CODE)
    return path


@pytest.fixture
def onnx(tmp_path):
    """A file that looks like ONNX; what is refused is refused before it is read."""
    path = tmp_path / "flowers.onnx"
    path.write_bytes(b"\x08\x0a\x12\x07pytorch" + CODE)
    return path


def spec_of(engine, labels, **changes):
    return ModelSpec(str(engine), "flowers", **{"labels": labels, "preprocessing": PREPROCESSING, **changes})


def added(engine, labels, tmp_path, **changes):
    said: list[str] = []
    entry = add(spec_of(engine, labels, **changes), tmp_path / "repository", said.append)
    return entry, tmp_path / "repository", "\n".join(said)


def config(repository, folder):
    return read_model_config(repository / folder / "config.pbtxt")


def test_engine_is_served_unchanged(engine, labels, tmp_path):
    serving = Serving(max_batch_size=16, preferred=(4, 16), instances=1)
    entry, repository, said = added(
        engine, labels, tmp_path, engine_tensors=("images", "probabilities"), serving=serving
    )
    assert (repository / "flowers_classifier/1/model.plan").read_bytes() == engine.read_bytes()
    classifier, ensemble = (config(repository, folder) for folder in ("flowers_classifier", "flowers"))
    assert (classifier.platform, classifier.max_batch_size) == ("tensorrt_plan", 16)
    assert [(tensor.name, list(tensor.dims)) for tensor in classifier.input] == [("images", [3, 224, 224])]
    assert [(tensor.name, list(tensor.dims)) for tensor in classifier.output] == [("probabilities", [2])]
    # The backend runs on GPUs alone; every one of them.
    (group,) = classifier.instance_group
    assert (group.kind, list(group.gpus)) == (group.KIND_GPU, [])
    assert all(list(warmup.inputs) == ["images"] for warmup in classifier.model_warmup)
    assert breaches(ensemble) == []
    step = ensemble.ensemble_scheduling.step[-1]
    assert (dict(step.input_map), dict(step.output_map)) == (
        {"images": "PREPROCESSED_IMAGE"},
        {"probabilities": "PREDICTION"},
    )
    assert "neither its tensors nor its answers were tested" in said
    assert "1 to 16 images fp32 [N, 3, 224, 224] as 'images'" in said
    assert read_entry(repository, "flowers") == entry


def test_names_of_tensors_are_by_default_those_of_our_own_onnx(engine, labels, tmp_path):
    """trtexec keeps the names of the ONNX file that `gateway model add --format onnx` wrote. It may take pixels."""
    entry, repository, _ = added(engine, labels, tmp_path, tensor=ImageTensor.UINT8)
    classifier = config(repository, "flowers_classifier")
    assert [tensor.name for tensor in (*classifier.input, *classifier.output)] == ["input__0", "output__0"]
    assert DataType.Name(classifier.input[0].data_type) == "TYPE_UINT8"
    with pytest.raises(UserError, match="whose original network is not known here"):
        original_probabilities(entry.versions[1])


def test_new_version_of_an_engine_is_an_engine(engine, labels, tmp_path, onnx):
    _, repository, _ = added(engine, labels, tmp_path)
    second = add(spec_of(engine, None, preprocessing=None, version=2), repository, print)
    assert sorted(second.versions) == [1, 2]
    with pytest.raises(UserError, match="the other versions are TensorRT engines"):
        add(spec_of(onnx, None, preprocessing=None, version=3), repository, print)


def test_header_before_an_engine_is_cut_off_by_the_advised_command(tmp_path):
    header = b'{"stride": 32, "imgsz": [224, 224]}'
    path = tmp_path / "yolo.engine"
    path.write_bytes(len(header).to_bytes(4, "little") + header + b"ftrt" + CODE)
    assert kind_of(path) is FileKind.WRAPPED_ENGINE
    advice = str(refuse(path, FileKind.WRAPPED_ENGINE))
    _, command, argument = advice.partition("python3 -c ")[2].split('"')
    subprocess.run([sys.executable, "-c", command, argument.strip()], cwd=tmp_path, check=True)
    assert (tmp_path / "model.plan").read_bytes() == b"ftrt" + CODE
    assert kind_of(tmp_path / "model.plan") is FileKind.ENGINE
