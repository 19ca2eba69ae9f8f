"""What the shipped config.pbtxt files have, besides what the doctor checks."""

from collections.abc import Callable

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.settings import STREAM_IDLE_SECONDS
from gateway.triton.contract import (
    CLASSIFIER,
    ENSEMBLE_MODEL,
    PREPROCESSOR,
    RAW_IMAGE,
    SEQUENCE_MODEL,
    read_model_config,
)
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from tests.settings import Settings


def config_of(model: str) -> ModelConfig:
    return read_model_config(DEFAULT_MODEL_REPOSITORY / model / "config.pbtxt")


PROPERTIES: list[tuple[str, Callable[[ModelConfig], object], object]] = [
    (ENSEMBLE_MODEL, lambda config: config.response_cache.enable, True),
    # Requests with different padding, and frames with different classes, may share a batch.
    (PREPROCESSOR, lambda config: {each.name for each in config.input if each.allow_ragged_batch} >= {RAW_IMAGE}, True),
    (SEQUENCE_MODEL, lambda config: [each.allow_ragged_batch for each in config.input], [True]),
    *((step, lambda config: config.HasField("dynamic_batching"), True) for step in (PREPROCESSOR, CLASSIFIER)),
]


@pytest.mark.parametrize(("model", "read", "value"), PROPERTIES)
def test_configuration_has_its_properties(model, read, value):
    assert read(config_of(model)) == value


@pytest.mark.parametrize("model", [PREPROCESSOR, CLASSIFIER])
def test_every_step_has_a_warmup_with_its_inputs(model):
    config = config_of(model)
    assert config.max_batch_size == config_of(ENSEMBLE_MODEL).max_batch_size
    assert config.model_warmup
    for warmup in config.model_warmup:
        assert set(warmup.inputs) == {tensor.name for tensor in config.input}


def test_sequence_model_has_controls_and_a_longer_idle_timeout():
    config = config_of(SEQUENCE_MODEL)
    assert config.max_batch_size == config_of(ENSEMBLE_MODEL).max_batch_size
    batching = config.sequence_batching
    assert batching.max_sequence_idle_microseconds / 1e6 > STREAM_IDLE_SECONDS
    assert batching.oldest.max_candidate_sequences > Settings(_env_file=None).max_streams
    assert [control.name for control in batching.control_input] == ["START", "END", "READY", "CORRID"]
