"""Dynamic batching: all instances run under load, and none is free while requests wait."""

import asyncio
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelQueuePolicy

from gateway.triton.contract import CLASSIFIER, PREPROCESSOR, has_queue_policy, read_model_config
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_local.runtime.base import TritonRuntime
from gateway_models.repository.render import render
from gateway_models.repository.spec import Serving
from tests.gateway_models.repository.entries import entry
from tests.tritons import running_triton

INSTANCES = 4
CLIENTS = 64
EXECUTIONS, WINDOWS = 200, 60
ONE = "one_"
BURST, BURSTS = 16, 5
LONG_SECONDS = 0.4
"""Less than the half second after which a batcher with a policy checks again, and more than a pause of the machine."""
SLOW_MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        started = time.monotonic()
        time.sleep(0.005)
        span = np.array([[started, time.monotonic()]])
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("SPAN", span)]) for _ in requests]
"""
SLOW_CONFIG = """
name: "slow"
backend: "python"
max_batch_size: 64
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SPAN" data_type: TYPE_FP64 dims: [ 2 ] } ]
"""
"""Answers each request with the start and the end of its execution, in seconds."""


def slow(batching: ModelDynamicBatching, instances: int = INSTANCES) -> ModelConfig:
    config = text_format.Parse(SLOW_CONFIG, ModelConfig())
    config.dynamic_batching.CopyFrom(batching)
    config.instance_group.add(count=instances)
    return config


def shipped(model: str) -> ModelDynamicBatching:
    return read_model_config(DEFAULT_MODEL_REPOSITORY / model / "config.pbtxt").dynamic_batching


def added(serving: Serving) -> ModelDynamicBatching:
    text = render(entry(serving=serving))["head_classifier"]
    return text_format.Parse(text, ModelConfig()).dynamic_batching


async def runs_on_all_instances(url: str, model: str) -> bool:
    """Whether INSTANCES executions run at once in one of WINDOWS of EXECUTIONS under load.

    The first window is ignored, in which the load begins; an instance that is lost does not return.
    """
    given = InferInput("INPUT", [1, 1], "INT32").set_data_from_numpy(np.zeros((1, 1), np.int32))
    found: set[tuple[float, float]] = set()
    windows: list[int] = []
    async with InferenceServerClient(url) as client:

        def is_over() -> bool:
            return len(windows) > WINDOWS or INSTANCES in windows[1:]

        async def send() -> None:
            while not is_over():
                result = await client.infer(model, [given], client_timeout=120)
                found.add(tuple(result.as_numpy("SPAN")[0]))
                if len(found) == EXECUTIONS:
                    windows.append(most_at_once(sorted(found)))
                    found.clear()

        await asyncio.gather(*(send() for _ in range(CLIENTS)))
    return INSTANCES in windows[1:]


def most_at_once(executions: list[tuple[float, float]]) -> int:
    changes = sorted([(start, 1) for start, _ in executions] + [(end, -1) for _, end in executions])
    return int(np.cumsum([change for _, change in changes]).max())


async def is_held_back(url: str, model: str) -> bool:
    """Whether the one instance of a model was free for long while requests waited, in one burst of them."""
    given = InferInput("INPUT", [1, 1], "INT32").set_data_from_numpy(np.zeros((1, 1), np.int32))
    async with InferenceServerClient(url) as client:
        results = await asyncio.gather(*(client.infer(model, [given], client_timeout=120) for _ in range(BURST)))
    executions = sorted({tuple(result.as_numpy("SPAN")[0]) for result in results})
    return any(later[0] - earlier[1] > LONG_SECONDS for earlier, later in itertools.pairwise(executions))


BATCHINGS = {
    "preprocessor": shipped(PREPROCESSOR),
    "classifier": shipped(CLASSIFIER),
    "with_a_queue_delay": added(Serving(queue_delay_us=100)),
}


@pytest.fixture(scope="module")
def url(runtime: TritonRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Triton with slow models: on INSTANCES or, with "one_" before its name, on one."""
    folder = tmp_path_factory.mktemp("batching")
    configs = {name: slow(batching) for name, batching in BATCHINGS.items()}
    configs |= {f"{ONE}{name}": slow(batching, 1) for name, batching in BATCHINGS.items()}
    for name, config in configs.items():
        config.name = name
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(SLOW_MODEL)
        (folder / name / "config.pbtxt").write_text(text_format.MessageToString(config))
    with running_triton(runtime, folder, on_log=lambda _: None) as server:
        yield server.url


@pytest.mark.parametrize("model", BATCHINGS)
async def test_model_keeps_running_on_all_instances_under_load(url, model):
    assert await runs_on_all_instances(url, model)


@pytest.mark.parametrize("model", BATCHINGS)
def test_no_request_waits_while_an_instance_is_free(url, model):
    """One of several bursts is enough: a busy machine delays some of them, a queue policy most of them."""
    assert not has_queue_policy(slow(BATCHINGS[model]))
    assert not all(asyncio.run(is_held_back(url, ONE + model)) for _ in range(BURSTS))


def test_bound_timeout_override_and_priorities_are_queue_policies():
    assert not has_queue_policy(slow(ModelDynamicBatching(max_queue_delay_microseconds=1)))
    policies = [{"max_queue_size": 1}, {"default_timeout_microseconds": 1}, {"allow_timeout_override": True}]
    for options in (
        *({"default_queue_policy": ModelQueuePolicy(**policy)} for policy in policies),
        {"priority_levels": 2, "default_priority_level": 1},
    ):
        assert has_queue_policy(slow(ModelDynamicBatching(**options))), options
