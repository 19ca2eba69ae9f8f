"""Files of other formats than torch's archives: none reaches beyond itself, and each refusal is a sentence."""

import io
import json
import os
import pickle
import tarfile
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

from gateway_client.files import read_text
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.hub import HubError, read_folder
from gateway_models.networks.labels import LabelsError, given_labels
from gateway_models.networks.model_source import SourceError, read_labels
from gateway_models.networks.onnx_graph import load_onnx
from gateway_models.networks.weights import read_state_dict
from gateway_models.repository.preprocessing import PreprocessingError
from gateway_models.repository.preprocessing_sources import from_file
from tests.gateway_models.networks.archives import Trap, saved
from tests.gateway_models.networks.builders import Head, save_onnx

VIT = {"architectures": ["ViTForImageClassification"], "model_type": "vit"}
TIMM = {"architecture": "test_resnet", "num_classes": 5, "pretrained_cfg": {"input_size": [3, 160, 160]}}


# ONNX


def linear(location: str = "", operator: str = "MatMul", domain: str = "") -> onnx.ModelProto:
    """A model whose weights lie in another file, or with another operator than ONNX's."""
    weights = onnx.numpy_helper.from_array(torch.ones(3, 5).numpy(), "weights")
    if location:
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=location)
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node(operator, ["flat", "weights"], ["scores"], domain=domain),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 3, 8, 8])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 5])
    graph = helper.make_graph(nodes, "linear", [images], [scores], [weights])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets)


@pytest.fixture
def beside(tmp_path) -> Path:
    """A folder with a file, a link and a FIFO, beside another file."""
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(60))
    (folder / "weights.bin").write_bytes(torch.ones(3, 5).numpy().tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "fifo")
    return folder


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "link", "fifo", "absent", "./weights.bin", ".."])
def test_onnx_reads_no_file_but_those_beside_it(beside, location):
    (beside / "model.onnx").write_bytes(linear(location).SerializeToString())
    with pytest.raises(
        ModelFileError, match="which is not a file in its own folder: export it again with external_data"
    ):
        load_onnx(beside / "model.onnx")


def test_onnx_reads_its_weights_from_a_file_beside_it(beside):
    (beside / "model.onnx").write_bytes(linear("weights.bin").SerializeToString())
    model = load_onnx(beside / "model.onnx")
    assert onnx.numpy_helper.to_array(model.graph.initializer[0]).sum() == 15


@pytest.mark.parametrize(
    ("operator", "domain"), [("EPContext", "com.microsoft"), ("MatMul", "ai.onnx.contrib"), ("Evil", "my.library")]
)
def test_onnx_with_operators_of_other_libraries_is_refused(tmp_path, operator, domain):
    (tmp_path / "model.onnx").write_bytes(linear("", operator, domain).SerializeToString())
    with pytest.raises(ModelFileError, match=f"has the operator {domain}::{operator}"):
        load_onnx(tmp_path / "model.onnx")


def test_onnx_in_the_branch_of_an_if_is_looked_at_too(tmp_path):
    model = onnx.load(save_onnx(Head(), tmp_path / "model.onnx"))
    inner = linear("/etc/hostname").graph
    model.graph.node.append(helper.make_node("If", ["scores"], ["other"], then_branch=inner, else_branch=inner))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match="'/etc/hostname', which is not a file in its own folder"):
        load_onnx(tmp_path / "model.onnx")


# Weights


def header(values: object, data: bytes = b"") -> bytes:
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(*shape: int, at: tuple[int, int], dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": at}


@pytest.mark.parametrize(
    "content",
    [
        (2**63).to_bytes(8, "little") + b'{"a": 1}',
        (2**27).to_bytes(8, "little") + b'{"a": 1}',
        header({"a": tensor(4, at=(0, 8))}, bytes(8)),
        header({"a": tensor(2, at=(0, 8))}, bytes(4)),
        header({"a": tensor(2, at=(0, 8)), "b": tensor(2, at=(4, 12))}, bytes(12)),
        header({"a": tensor(2**62, 2**62, at=(0, 8))}, bytes(8)),
        header({"a": tensor(1, at=(0, 8), dtype="O")}, bytes(8)),
        header(b'{"a":' * 100_000),
    ],
    ids=["endless header", "long header", "dtype", "short", "overlap", "overflow", "objects", "deep"],
)
def test_invalid_safetensors_are_refused(tmp_path, content):
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError, match="is damaged"):
        read_state_dict(tmp_path / "weights.safetensors")


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


@pytest.mark.parametrize(
    "form",
    [
        lambda trap: saved({"weights": torch.ones(2), "trap": trap}),
        lambda trap: saved({"weights": trap}, _use_new_zipfile_serialization=False),
        lambda trap: saved({"weights": trap}, pickle_protocol=4),
        pickle.dumps,
        as_tar,
    ],
    ids=["zip", "legacy", "protocol 4", "pickle", "tar"],
)
@pytest.mark.parametrize("name", ["weights.pth", "weights.pkl", "weights.bin"])
def test_pickled_weights_with_code_are_not_executed(tmp_path, form, name):
    (tmp_path / name).write_bytes(form(Trap(tmp_path / "executed")))
    with pytest.raises(ModelFileError, match="cannot be read as plain weights, and anything else could run code"):
        read_state_dict(tmp_path / name)
    assert not (tmp_path / "executed").exists()


# Folders


def folder(path: Path, config: object) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    save_file({"weights": torch.ones(1)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**VIT, "auto_map": {"AutoModel": "code.Net"}}, "auto_map in config"),
        ({**VIT, "backbone_config": {"auto_map": {"AutoModel": "code.Net"}}}, "auto_map in config"),
        ({**VIT, "attn_implementation": "someone/kernels"}, "attn_implementation in config"),
        ({**VIT, "quantization_config": {"quant_method": "any"}}, "quantization_config in config"),
        ({**TIMM, "architecture": "hf-hub:someone/model"}, "which is not a name in timm"),
        ({**TIMM, "architecture": "local-dir:/tmp"}, "which is not a name in timm"),
        ({**TIMM, "model_args": {"checkpoint_path": "evil.pth"}}, "checkpoint_path in model_args"),
        ({**TIMM, "model_args": {"pretrained_cfg": {"file": "evil.pth"}}}, "pretrained_cfg in model_args"),
        ({**TIMM, "pretrained_cfg": []}, "is not a configuration of timm"),
        ('{"a":' * 100_000, "cannot be read as JSON"),
        ('{"a": "' + "x" * (64 * 2**20) + '"}', "is larger than"),
    ],
    ids=lambda value: "" if isinstance(value, (dict, str)) and len(str(value)) > 60 else None,
)
def test_folder_that_names_code_or_other_files_is_refused(tmp_path, config, reason):
    with pytest.raises(HubError, match=reason):
        read_folder(folder(tmp_path, config))


@pytest.mark.parametrize("name", ["../model.safetensors", "/srv/model.safetensors", "pytorch_model.bin"])
def test_index_may_name_only_files_of_its_folder(tmp_path, name):
    folder(tmp_path, VIT)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weights": name}}))
    with pytest.raises(HubError, match=r"which is not a \.safetensors file in the folder"):
        read_folder(tmp_path)


def test_weights_that_are_no_file_are_refused(tmp_path):
    folder(tmp_path, VIT)
    os.mkfifo(tmp_path / "more.safetensors")
    with pytest.raises(HubError, match=r"more\.safetensors is not a regular file"):
        read_folder(tmp_path)


# Text


@pytest.mark.parametrize("name", ["fifo", "/dev/zero"])
@pytest.mark.parametrize(
    ("read", "error"), [(given_labels, LabelsError), (read_labels, SourceError), (from_file, PreprocessingError)]
)
def test_special_files_are_refused_without_waiting(tmp_path, name, read, error):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(error, match="not a regular file"):
        read(tmp_path / name)


def test_text_is_read_up_to_its_limit(tmp_path):
    (tmp_path / "text").write_text("é" * 50)
    assert read_text(tmp_path / "text", max_bytes=100) == "é" * 50
    with pytest.raises(OSError, match="is larger than 99 bytes"):
        read_text(tmp_path / "text", max_bytes=99)
