"""No model has a queue policy, with which Triton leaves instances free while requests wait."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelQueuePolicy

from gateway.triton.configs import has_queue_policy, read_model_config
from gateway.triton.contract import CLASSIFIER, PREPROCESSOR
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.repository.render import render
from gateway_models.repository.spec import Serving
from tests.gateway_models.repository.entries import entry


def added(serving: Serving) -> ModelConfig:
    return text_format.Parse(render(entry(serving=serving))["head_classifier"], ModelConfig())


@pytest.mark.parametrize(
    "config",
    [
        *(read_model_config(DEFAULT_MODEL_REPOSITORY / model / "config.pbtxt") for model in (PREPROCESSOR, CLASSIFIER)),
        added(Serving(queue_delay_us=100)),
    ],
    ids=["preprocessor", "classifier", "with a queue delay"],
)
def test_model_has_dynamic_batching_without_a_queue_policy(config):
    assert config.HasField("dynamic_batching")
    assert not has_queue_policy(config)


POLICIES = ({"max_queue_size": 1}, {"default_timeout_microseconds": 1}, {"allow_timeout_override": True})


@pytest.mark.parametrize(
    "options",
    [
        *({"default_queue_policy": ModelQueuePolicy(**policy)} for policy in POLICIES),
        {"priority_levels": 2, "default_priority_level": 1},
    ],
)
def test_bound_timeout_override_and_priorities_are_queue_policies(options):
    assert has_queue_policy(ModelConfig(dynamic_batching=ModelDynamicBatching(**options)))
