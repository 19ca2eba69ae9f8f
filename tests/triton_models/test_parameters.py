"""The preprocessor's parameters: what cannot be right is refused by name before an image comes."""

import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.embedded.runtime import DEFAULT_MODEL_REPOSITORY
from gateway.repository.writing import PREPROCESSOR_CODE
from gateway.triton.contract import PREPROCESSOR

WRONG = {
    "resizer": ('"pillow"', '"opencv"', "resize_library 'opencv' is not torch, pillow, or"),
    "interpolation": ('"bicubic"', '"cubic"', "'cubic' is not a valid InterpolationMode"),
    "mean": ('"0.5,0.5,0.5"', '"0.5,0.5"', "a parameter is missing or not understood"),
    "crop": (
        'key: "crop_size" value: { string_value: "224"',
        'key: "crop_size" value: { string_value: "192"',
        "but crop_size is 192",
    ),
    "resize": ('"224,224"', '"200"', "crop_size is larger than resize_size"),
}
"""A wrong parameter's model → what its configuration has, what it says instead, and why that is refused."""


class Refused(Exception):
    pass


@pytest.fixture
def initialize(monkeypatch):
    """Start the preprocessor as Triton's stub does, with a configuration's text."""
    utils = ModuleType("triton_python_backend_utils")
    utils.Logger = SimpleNamespace(log_error=lambda _: None, log_info=lambda _: None)
    utils.TritonModelException = Refused
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    spec = importlib.util.spec_from_file_location("preprocessor_model", PREPROCESSOR_CODE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # What is set for a process of Triton's must not be set for this one.
    monkeypatch.setattr(module, "keep_freed_memory", lambda: None)

    def initialize(text: str) -> None:
        config = MessageToDict(text_format.Parse(text, ModelConfig()), preserving_proto_field_name=True)
        args = {"model_config": json.dumps(config), "model_instance_kind": "CPU", "model_instance_name": "preprocessor"}
        module.TritonPythonModel().initialize(args)

    return initialize


def test_the_project_s_own_are_right(initialize):
    initialize((DEFAULT_MODEL_REPOSITORY / PREPROCESSOR / "config.pbtxt").read_text())


@pytest.mark.parametrize("name", WRONG)
def test_parameters_that_cannot_be_right_are_named(initialize, name):
    old, new, reason = WRONG[name]
    text = (DEFAULT_MODEL_REPOSITORY / PREPROCESSOR / "config.pbtxt").read_text()
    assert old in text
    with pytest.raises(Refused) as refused:
        initialize(text.replace(old, new))
    assert reason in str(refused.value)
