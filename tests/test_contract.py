"""The models' config.pbtxt files match the gateway's names of tensors and models."""

from collections.abc import Callable

import pytest
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from gateway.triton.contract import (
    CLASSIFIER,
    CLASSIFIER_INPUT,
    CLASSIFIER_OUTPUT,
    ENSEMBLE_MODEL,
    IMAGE_STATUS,
    PREDICTION,
    PREPROCESSED_IMAGE,
    PREPROCESSOR,
    RAW_IMAGE,
    RAW_IMAGE_LENGTH,
    SEQUENCE_FRAMES,
    SEQUENCE_MODEL,
    SEQUENCE_PREDICTION,
    breaches,
)
from gateway.triton.model_config import has_queue_policy, read_model_config
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from tests.settings import Settings

ENCODED = {RAW_IMAGE: ("TYPE_UINT8", [-1]), RAW_IMAGE_LENGTH: ("TYPE_INT32", [1])}
STATUS = {IMAGE_STATUS: ("TYPE_INT32", [1])}
TENSORS = {
    ENSEMBLE_MODEL: (ENCODED, {PREDICTION: ("TYPE_FP32", [1000]), **STATUS}),
    PREPROCESSOR: (ENCODED, {PREPROCESSED_IMAGE: ("TYPE_FP32", [3, 224, 224]), **STATUS}),
    CLASSIFIER: ({CLASSIFIER_INPUT: ("TYPE_FP32", [3, 224, 224])}, {CLASSIFIER_OUTPUT: ("TYPE_FP32", [1000])}),
    SEQUENCE_MODEL: (
        {PREDICTION: ("TYPE_FP32", [-1])},
        {SEQUENCE_PREDICTION: ("TYPE_FP32", [-1]), SEQUENCE_FRAMES: ("TYPE_INT32", [1])},
    ),
}


def config_of(model: str) -> ModelConfig:
    return read_model_config(DEFAULT_MODEL_REPOSITORY / model / "config.pbtxt")


def tensors(given) -> dict[str, tuple[str, list[int]]]:
    return {tensor.name: (DataType.Name(tensor.data_type), list(tensor.dims)) for tensor in given}


def test_repository_contains_only_models_of_the_contract():
    assert {path.parent.name for path in DEFAULT_MODEL_REPOSITORY.glob("*/config.pbtxt")} == set(TENSORS)


@pytest.mark.parametrize("model", TENSORS)
def test_tensors_match_the_contract(model):
    config = config_of(model)
    assert config.name == model
    assert (tensors(config.input), tensors(config.output)) == TENSORS[model]


def test_ensemble_feeds_each_step_from_the_one_before():
    preprocessor, classifier = config_of(ENSEMBLE_MODEL).ensemble_scheduling.step
    assert (preprocessor.model_name, classifier.model_name) == (PREPROCESSOR, CLASSIFIER)
    assert set(preprocessor.input_map) == set(ENCODED)
    assert classifier.input_map[CLASSIFIER_INPUT] == preprocessor.output_map[PREPROCESSED_IMAGE]
    assert classifier.output_map[CLASSIFIER_OUTPUT] == PREDICTION
    assert preprocessor.output_map[IMAGE_STATUS] == IMAGE_STATUS


def test_ensembles_largest_batch_fits_every_step():
    assert len({config_of(model).max_batch_size for model in TENSORS}) == 1


PROPERTIES: list[tuple[str, Callable[[ModelConfig], object], object]] = [
    (ENSEMBLE_MODEL, breaches, []),
    (ENSEMBLE_MODEL, lambda config: config.response_cache.enable, True),
    (CLASSIFIER, lambda config: [output.label_filename for output in config.output], ["labels.txt"]),
    # Requests with different padding, and frames with different classes, may share a batch.
    (PREPROCESSOR, lambda config: {each.name for each in config.input if each.allow_ragged_batch} >= {RAW_IMAGE}, True),
    (SEQUENCE_MODEL, lambda config: [each.allow_ragged_batch for each in config.input], [True]),
    *((step, lambda config: config.HasField("dynamic_batching"), True) for step in (PREPROCESSOR, CLASSIFIER)),
    *((step, has_queue_policy, False) for step in (PREPROCESSOR, CLASSIFIER)),
]


@pytest.mark.parametrize(("model", "read", "value"), PROPERTIES)
def test_configuration_has_its_properties(model, read, value):
    assert read(config_of(model)) == value


@pytest.mark.parametrize("model", [PREPROCESSOR, CLASSIFIER])
def test_every_step_has_a_warmup_with_its_inputs(model):
    config = config_of(model)
    assert config.model_warmup
    for warmup in config.model_warmup:
        assert set(warmup.inputs) == {tensor.name for tensor in config.input}


def test_sequence_model_has_controls_and_a_longer_idle_timeout():
    batching = config_of(SEQUENCE_MODEL).sequence_batching
    assert batching.max_sequence_idle_microseconds / 1e6 > Settings(_env_file=None).stream_idle_seconds
    assert batching.oldest.max_candidate_sequences > Settings(_env_file=None).max_streams
    assert [control.name for control in batching.control_input] == ["START", "END", "READY", "CORRID"]
