"""A model file is recognised by its content, and nothing in it runs."""

import io
import pickle
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from argparse import Namespace
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

from gateway_models.networks.errors import ModelError
from gateway_models.networks.file_kinds import (
    MAX_PICKLE_BYTES,
    ONNX,
    PICKLE,
    SAFETENSORS,
    STATE_DICT,
    TORCHSCRIPT,
    kind_of,
)
from gateway_models.networks.jobs import stored_bytes
from gateway_models.networks.model_source import find_labels, find_preprocessing, find_source
from gateway_models.networks.weights import load_into, read_tensors
from gateway_models.repository.spec import ModelSpec
from tests.gateway_models.networks.builders import Head, Trap, save_onnx, save_torchscript, saved
from tests.processes import PROJECT


def written(value: object, path: Path, **options: object) -> Path:
    torch.save(value, path, **options)
    return path


WITH_WEIGHTS = r"torchvision:ARCH --weights \S+model\.pt"


@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("value", "kind", "advice"),
    [
        (Head().state_dict(), STATE_DICT, WITH_WEIGHTS),
        ({"epoch": 3, "state_dict": Head().state_dict(), "optimizer": {}}, STATE_DICT, WITH_WEIGHTS),
        ({"state_dict": Head().state_dict(), "args": Namespace(lr=0.1)}, STATE_DICT, WITH_WEIGHTS),
        (nn.Linear(2, 2), PICKLE, "is a pickle: unpickling can run any code"),
        (Head(), PICKLE, "is a pickle: unpickling can run any code"),
    ],
    ids=["state dict", "checkpoint", "checkpoint with its options", "module of torch", "module of one's own"],
)
def test_torch_save_files_are_refused_without_loading(tmp_path, value, kind, advice, new_format):
    path = written(value, tmp_path / "model.pt", _use_new_zipfile_serialization=new_format)
    assert kind_of(path) is kind
    with pytest.raises(ModelError, match=advice):
        find_source(ModelSpec(str(path), "model"))


def test_files_are_recognised_by_content(tmp_path):
    assert kind_of(save_torchscript(Head(), tmp_path / "weights.bin")) is TORCHSCRIPT
    assert kind_of(save_onnx(Head(), tmp_path / "model.pt")) is ONNX
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b'{"a": 1}')
    assert kind_of(tmp_path / "model.safetensors") is SAFETENSORS
    with pytest.raises(ModelError, match="cannot read"):
        kind_of(tmp_path / "absent.pt")


def test_file_that_is_no_model_is_refused_with_advice(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"\xff\xd8\xff\xe0 a photo")
    with pytest.raises(ModelError, match=r"TorchScript \(model\.pt\), ONNX"):
        find_source(ModelSpec(str(tmp_path / "model.pt"), "model"))


def as_tar(trap: Trap) -> bytes:
    """As torch saved before 0.1.10, and still reads."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            data = pickle.dumps(trap)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


ANY_CODE = "is a pickle: unpickling can run any code"
NOT_WEIGHTS = "--weights takes a state dict"


@pytest.mark.parametrize(
    ("form", "as_model", "as_weights"),
    [
        (
            lambda trap: saved({"weights": torch.ones(2), "trap": trap}),
            "it has weights but no network",
            "",
        ),
        (
            lambda trap: saved({"weights": trap}, _use_new_zipfile_serialization=False),
            ANY_CODE,
            NOT_WEIGHTS,
        ),
        (
            lambda trap: saved({"weights": trap}, pickle_protocol=4),
            ANY_CODE,
            NOT_WEIGHTS,
        ),
        (pickle.dumps, ANY_CODE, NOT_WEIGHTS),
        (as_tar, "is no model: use a program", NOT_WEIGHTS),
    ],
    ids=["zip", "legacy", "protocol 4", "pickle", "tar"],
)
def test_pickle_with_code_is_refused_unexecuted(tmp_path, form, as_model, as_weights):
    """Whether it would be the model, or its weights."""
    evidence, path = tmp_path / "executed", tmp_path / "weights.pth"
    path.write_bytes(form(Trap(evidence)))
    with pytest.raises(ModelError, match=as_model):
        find_source(ModelSpec(str(path), "model"))
    with pytest.raises(ModelError, match=as_weights) if as_weights else nullcontext():
        find_source(ModelSpec("torchvision:resnet18", "model", weights=str(path)))
    with pytest.raises(ModelError, match="cannot be read as plain weights, and anything else could run code"):
        read_tensors(path)
    assert not evidence.exists()


def test_damaged_safetensors_are_refused(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes((2**63).to_bytes(8, "little") + b'{"a": 1}')
    with pytest.raises(ModelError, match="is damaged"):
        read_tensors(tmp_path / "weights.safetensors")


def under(prefix: str, seed: int = 0) -> dict:
    return {f"{prefix}{name}": value for name, value in Head(seed=seed).state_dict().items()}


@pytest.mark.parametrize(
    "content",
    [
        lambda: {"epoch": 1, "state_dict": under("module."), "args": Namespace(lr=0.1)},
        lambda: {"state_dict_ema": {**under("model."), "criterion.weight": torch.ones(5)}},
        lambda: {"state_dict": under("net._orig_mod.module."), "optimizer": {"state": {0: {"step": torch.ones(1)}}}},
        lambda: {"n_averaged": torch.tensor(5), **under("module.")},
        lambda: {"model": under(""), "model_ema": under("module.")},
    ],
    ids=["DataParallel", "Lightning", "compiled", "AveragedModel", "equal sets"],
)
def test_weights_are_found_under_any_prefix(tmp_path, content):
    path = written(content(), tmp_path / "checkpoint.pt")
    network = load_into(Head(seed=2), read_tensors(path), "w.pt", "head")
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in under("").items())


def test_several_sets_of_weights_are_refused_by_their_names(tmp_path):
    """As train.py of timm and torchvision write them: the user must choose one."""
    content = {"state_dict": under(""), "state_dict_ema": under("module.", seed=1)}
    path = written(content, tmp_path / "checkpoint.pt")
    with pytest.raises(ModelError, match=r"several sets of weights of head: state_dict and state_dict_ema\.module"):
        load_into(Head(), read_tensors(path), "w.pt", "head")


@pytest.mark.parametrize("value", [Head(), {"state_dict": Head().state_dict(), "took": timedelta(1)}])
def test_mixed_pickle_is_refused_with_code_to_save_its_weights(tmp_path, monkeypatch, value):
    path = written(value, tmp_path / "trained.pt")
    with pytest.raises(ModelError) as refused:
        read_tensors(Path(find_source(ModelSpec("torchvision:resnet18", "model", weights=str(path))).spec.weights))
    line = str(refused.value).partition("use that file: ")[2]
    monkeypatch.chdir(tmp_path)
    exec(line, {"torch": torch})  # noqa: S102  # what the message tells its reader to run
    assert set(read_tensors(tmp_path / "weights.pt")) == set(Head().state_dict())


def test_model_file_without_preprocessing_or_labels_is_refused(tmp_path):
    source = find_source(ModelSpec(str(save_torchscript(Head(), tmp_path / "model.pt")), "model"))
    with pytest.raises(ModelError, match="silently wrong"):
        find_preprocessing(source, None)
    with pytest.raises(ModelError, match="--labels FILE"):
        find_labels(source, None)


def test_torchvisions_models_bring_their_labels_and_preprocessing():
    source = find_source(ModelSpec("torchvision:resnet50", "model"))
    assert source.like == "ResNet50_Weights.IMAGENET1K_V2"
    assert find_preprocessing(source, None).resize_size == (232,)
    assert find_labels(source, None)[285] == "Egyptian cat"


def test_pickle_bomb_is_classified_by_its_first_megabytes(tmp_path):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("m/data.pkl", "w") as pickle:
        pickle.write(b"\x80\x02")
        for _ in range(256):
            pickle.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    tracemalloc.start()
    try:
        assert kind_of(path) is PICKLE
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_PICKLE_BYTES
    finally:
        tracemalloc.stop()


def test_holes_of_a_file_lift_no_limit(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"data")
        file.truncate(2**40)
    assert 0 < stored_bytes(tmp_path / "sparse") < 2**20
    (tmp_path / "dense").write_bytes(bytes(10_000))
    assert stored_bytes(tmp_path / "dense") == 10_000


def test_limits_of_a_process_are_enforced(tmp_path):
    script = """
import resource, sys
from gateway_models.networks.jobs import confine
confine(1000, cpu_seconds=50)
try:
    bytearray(2**40)
except MemoryError:
    print("no memory")
print(resource.getrlimit(resource.RLIMIT_CPU)[0], resource.getrlimit(resource.RLIMIT_CORE)[0])
print(resource.getrlimit(resource.RLIMIT_FSIZE)[0] >= 2**30, bool(bytearray(2**28)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PROJECT, check=True)
    assert done.stdout.split("\n")[:3] == ["no memory", "50 0", "True True"]
