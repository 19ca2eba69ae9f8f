"""A parameter of a configuration is changed in place, and protobuf's parser reads it."""

import pytest
from google.protobuf import text_format

from gateway.triton.model_config import ModelConfig, parameters
from gateway_local.config_text import with_parameter
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

CONFIG = """# Kept.
name: "flowers"
parameters { key: "first" value: { string_value: "1" } }  # kept
%s
"""
FORMS = {
    "message": 'parameters { key: "runtime" value: { string_value: "onnx" } }',
    "list": 'parameters: [ { key: "runtime", value: { string_value: "onnx" } } ]',
    "angle brackets": "parameters < key: 'runtime' value < string_value: 'on' 'nx' > >",
    "several lines": 'parameters: {\n  key: "runtime"\n  value: {\n    string_value: "onnx"  # kept\n  }\n}',
}

SHIPPED = sorted(DEFAULT_MODEL_REPOSITORY.glob("*/config.pbtxt"))


def read(text: str) -> dict[str, str]:
    return dict(parameters(text_format.Parse(text, ModelConfig())))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_parameter_is_changed_in_place(form):
    before = CONFIG % form
    after = with_parameter(before, "runtime", "torchscript")
    assert read(before) == {"first": "1", "runtime": "onnx"}
    assert read(after) == {"first": "1", "runtime": "torchscript"}
    assert after.count("# Kept.") == 1
    assert after.count("# kept") == before.count("# kept")
    assert with_parameter(after, "runtime", "torchscript") == after


def test_missing_parameter_is_added():
    after = with_parameter(CONFIG % "", "runtime", "onnx")
    assert read(after) == {"first": "1", "runtime": "onnx"}
    assert after.startswith("# Kept.")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_shipped_configurations_keep_every_other_byte(path):
    text = path.read_text()
    for key, value in read(text).items():
        assert with_parameter(text, key, value) == text
        assert read(with_parameter(text, key, "other")) == {**read(text), key: "other"}


def test_text_that_is_no_configuration_is_refused():
    with pytest.raises(ValueError):
        with_parameter("parameters {", "runtime", "onnx")
