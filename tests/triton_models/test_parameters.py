"""Invalid parameters of the preprocessor are refused by name at its start."""

import importlib
import json
import subprocess
import sys

import pytest
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway_models.repository.writing import PREPROCESSOR_CODE
from tests.doubles.python_backend import Refused, python_backend

SHIPPED = (PREPROCESSOR_CODE.parent / "config.pbtxt").read_text()


@pytest.fixture
def initialize(monkeypatch):
    """Start the preprocessor as Triton's stub does, with a configuration's text."""
    python_backend(monkeypatch)
    for name in [name for name in sys.modules if name.partition(".")[0] == PREPROCESSOR_CODE.name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(PREPROCESSOR_CODE.parent)
    module = importlib.import_module(f"{PREPROCESSOR_CODE.name}.model")
    # Settings of a process of Triton's must not apply to this one.
    monkeypatch.setattr(module, "keep_freed_memory", lambda: None)
    return lambda text: module.TritonPythonModel().initialize(arguments(text))


def arguments(text: str) -> dict[str, str]:
    """The arguments from Triton for an instance on the CPU whose configuration has this text."""
    config = MessageToDict(text_format.Parse(text, ModelConfig()), preserving_proto_field_name=True)
    return {"model_config": json.dumps(config), "model_instance_kind": "CPU", "model_instance_name": "preprocessor"}


@pytest.mark.parametrize("library", ["pillow", "torch"])
def test_known_resize_library_starts(initialize, library):
    initialize(SHIPPED.replace('"pillow"', f'"{library}"'))


@pytest.mark.parametrize(
    ("key", "old", "new", "reason"),
    [
        ("resize_library", "pillow", "opencv", "resize_library 'opencv' is not pillow or torch"),
        ("interpolation", "bicubic", "cubic", "'cubic' is not a valid InterpolationMode"),
        ("crop_rounding", "even", "up", "crop_rounding 'up' is not even or floor"),
        ("mean", "0.5,0.5,0.5", "0.5,0.5", "a parameter is missing or not understood"),
        ("crop_size", "224", "192", "but crop_size is 192"),
        ("resize_size", "224,224", "200", "crop_size is larger than resize_size"),
    ],
)
def test_invalid_parameters_are_named(initialize, key, old, new, reason):
    before, after = (f'key: "{key}" value: {{ string_value: "{value}"' for value in (old, new))
    assert before in SHIPPED
    with pytest.raises(Refused) as refused:
        initialize(SHIPPED.replace(before, after))
    assert reason in str(refused.value)


PRETENDED = """
import importlib, json, sys
from types import ModuleType, SimpleNamespace

utils = ModuleType("triton_python_backend_utils")
utils.Logger = SimpleNamespace(log_info=print)
sys.modules["triton_python_backend_utils"] = utils
sys.path.append(sys.argv[1])
importlib.import_module("1.model").TritonPythonModel().initialize(json.loads(sys.argv[2]))
print(sorted({"torch", "torchvision"} & set(sys.modules)))
"""


def test_pillow_resize_does_not_import_torch():
    args = [sys.executable, "-c", PRETENDED, str(PREPROCESSOR_CODE.parent), json.dumps(arguments(SHIPPED))]
    printed = subprocess.run(args, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "preprocessor runs on cpu, resizes with " in printed[0]
    assert printed[-1] == "[]"
