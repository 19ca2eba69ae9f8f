"""Contents of the shipped config.pbtxt files that the doctor does not check."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.settings import STREAM_IDLE_SECONDS
from gateway.triton.configs import read_model_config
from gateway.triton.contract import ENSEMBLE_MODEL, SEQUENCE_MODEL
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from tests.settings import Settings


def config_of(model: str) -> ModelConfig:
    return read_model_config(DEFAULT_MODEL_REPOSITORY / model / "config.pbtxt")


def test_sequence_model_has_controls_and_a_longer_idle_timeout():
    config = config_of(SEQUENCE_MODEL)
    assert config.max_batch_size == config_of(ENSEMBLE_MODEL).max_batch_size
    batching = config.sequence_batching
    assert batching.max_sequence_idle_microseconds / 1e6 > STREAM_IDLE_SECONDS
    assert batching.oldest.max_candidate_sequences > Settings(_env_file=None).max_streams
    assert [control.name for control in batching.control_input] == ["START", "END", "READY", "CORRID"]
