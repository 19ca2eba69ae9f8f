"""The models' config.pbtxt files match the gateway's names of tensors and models."""

import pytest
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput

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


def test_ensemble_has_no_contract_breaches():
    assert breaches(config_of(ENSEMBLE_MODEL)) == []


def test_ensemble_feeds_each_step_from_the_one_before():
    preprocessor, classifier = config_of(ENSEMBLE_MODEL).ensemble_scheduling.step
    assert (preprocessor.model_name, classifier.model_name) == (PREPROCESSOR, CLASSIFIER)
    assert set(preprocessor.input_map) == set(ENCODED)
    assert classifier.input_map[CLASSIFIER_INPUT] == preprocessor.output_map[PREPROCESSED_IMAGE]
    assert classifier.output_map[CLASSIFIER_OUTPUT] == PREDICTION
    assert preprocessor.output_map[IMAGE_STATUS] == IMAGE_STATUS


def test_ensembles_largest_batch_fits_every_step():
    assert len({config_of(model).max_batch_size for model in TENSORS}) == 1


def test_ensemble_uses_the_response_cache():
    assert config_of(ENSEMBLE_MODEL).response_cache.enable


@pytest.mark.parametrize("model", [PREPROCESSOR, CLASSIFIER])
def test_every_step_batches_without_a_queue_policy(model):
    assert config_of(model).HasField("dynamic_batching")
    assert not has_queue_policy(config_of(model))


@pytest.mark.parametrize("model", [PREPROCESSOR, CLASSIFIER])
def test_every_step_has_a_warmup_with_its_inputs(model):
    config = config_of(model)
    assert config.model_warmup
    for warmup in config.model_warmup:
        assert set(warmup.inputs) == {tensor.name for tensor in config.input}


def test_classifier_output_has_labels():
    (output,) = config_of(CLASSIFIER).output
    assert output.label_filename == "labels.txt"


def test_requests_with_different_padding_may_share_a_batch():
    ragged: dict[str, ModelInput] = {tensor.name: tensor for tensor in config_of(PREPROCESSOR).input}
    assert ragged[RAW_IMAGE].allow_ragged_batch


def test_frames_with_different_classes_may_share_a_batch():
    (scores,) = config_of(SEQUENCE_MODEL).input
    assert scores.allow_ragged_batch


def test_sequence_model_has_controls_and_a_longer_idle_timeout():
    batching = config_of(SEQUENCE_MODEL).sequence_batching
    assert batching.max_sequence_idle_microseconds / 1e6 > Settings(_env_file=None).stream_idle_seconds
    assert batching.oldest.max_candidate_sequences > Settings(_env_file=None).max_streams
    assert [control.name for control in batching.control_input] == ["START", "END", "READY", "CORRID"]
