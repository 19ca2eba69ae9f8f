"""The embedded Triton on this machine's GPUs: arguments, environment, and memory between the steps."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.triton.model_config import instances_on_gpus, read_model_config
from gateway_local.cuda_pool import DEFAULT_POOL_BYTES, arguments, pool_bytes, uncacheable
from gateway_local.devices import HIDE, NO_GPU, CacheOnGpu, Devices, choose_devices
from gateway_local.memory_plan import sized_configs
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from gateway_machine.capacity import plan
from gateway_machine.gpus import Gpus


def choose(repository, gpus, said=None):
    say = (lambda line: None) if said is None else said.append
    configs = sized_configs(repository, plan(2, gpus.usable))
    return choose_devices(configs, say, images_in_flight=256, gpus=lambda: gpus)


def on_gpu(repository, model, **changes):
    path = repository / model / "config.pbtxt"
    text = path.read_text()
    for old, new in {"KIND_CPU": "KIND_GPU", **changes}.items():
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.parametrize(
    ("gpus", "damage", "devices"),
    [
        (Gpus(0), "", Devices(NO_GPU)),
        (Gpus(1, (13, 0), (13, 0)), "", Devices()),
        (Gpus(1, (13, 0), (13, 0)), "not a configuration {", Devices()),  # which Triton reports
    ],
)
def test_shipped_models_need_no_options(repository, gpus, damage, devices):
    if damage:
        (repository / "preprocessor" / "config.pbtxt").write_text(damage)
    said = []
    assert (choose(repository, gpus, said), said) == (devices, [])


def test_gpu_that_torch_cannot_use_is_hidden_from_triton(repository):
    said = []
    devices = choose(repository, Gpus(1, (12, 2), (13, 0), torch_sees_them=False), said)
    assert devices.environment == HIDE
    assert "models run on the CPU" in said[0]
    assert "R580" in said[0]


def test_hidden_gpu_is_hidden_from_the_server_process(repository, tmp_path):
    program = tmp_path / "tritonserver"
    program.write_text('#!/bin/sh\necho "sees ${CUDA_VISIBLE_DEVICES-all}"\n')
    program.chmod(0o755)
    lines = []
    runtime = TritonRuntime(program, tmp_path, tmp_path, ())
    server = EmbeddedTriton(runtime, repository, on_log=lines.append, environment=HIDE)
    server.start()
    server.wait(20)
    server.stop()
    assert lines == ["triton | sees -1"]


def test_preprocessor_on_a_gpu_gets_a_pool_for_its_images(repository):
    on_gpu(repository, "preprocessor")
    said = []
    (option,) = choose(repository, Gpus(1, (13, 0), (13, 0)), said).arguments
    gpu, size = option.removeprefix("--cuda-memory-pool-byte-size=").split(":")
    assert (gpu, int(size)) == ("0", (3 * 224 * 224 * 4 + 4) * (64 * 4 + 256))
    assert option in said[0]


def test_cache_behind_a_preprocessor_on_a_gpu_is_refused(repository):
    on_gpu(repository, "preprocessor")
    on_gpu(repository, "classifier", **{"response_cache { enable: false }": "response_cache { enable: true }"})
    with pytest.raises(CacheOnGpu, match="classifier: Triton's response cache reads inputs in host memory only"):
        choose(repository, Gpus(1, (13, 0), (13, 0)))


IMAGE_BYTES = 3 * 224 * 224 * 4 + 4
"""PREPROCESSED_IMAGE fp32 and IMAGE_STATUS int32 of one row."""


@pytest.fixture
def configs() -> dict[str, ModelConfig]:
    """The shipped models, with two instances of the network on each GPU."""
    paths = Path(DEFAULT_MODEL_REPOSITORY).glob("*/config.pbtxt")
    found = {path.parent.name: read_model_config(path) for path in paths}
    place(found["classifier"], "kind: KIND_AUTO count: 2")
    return found


def place(config: ModelConfig, group: str) -> None:
    del config.instance_group[:]
    text_format.Merge(f"instance_group [ {{ {group} }} ]", config)


def test_shipped_models_leave_no_tensors_on_a_gpu(configs):
    assert instances_on_gpus(configs["preprocessor"], gpus=2) == {}
    assert instances_on_gpus(configs["classifier"], gpus=2) == {0: 2, 1: 2}
    assert pool_bytes(configs, gpus=2, images_in_flight=256) == {}
    assert arguments({}) == []


@pytest.mark.parametrize("group", ["kind: KIND_GPU count: 2", "kind: KIND_AUTO count: 2", "count: 2"])
def test_pool_holds_running_batches_and_waiting_images(configs, group):
    place(configs["preprocessor"], group)
    batches = 64 * 2 + 64 * 2
    sizes = pool_bytes(configs, gpus=1, images_in_flight=256)
    assert sizes == {0: IMAGE_BYTES * (batches + 256)}
    assert arguments(sizes) == [f"--cuda-memory-pool-byte-size=0:{sizes[0]}"]
    assert sizes[0] > DEFAULT_POOL_BYTES


def test_kind_auto_is_the_cpu_without_a_gpu(configs):
    place(configs["preprocessor"], "kind: KIND_AUTO count: 2")
    assert pool_bytes(configs, gpus=0, images_in_flight=256) == {}


def test_each_gpu_has_a_pool_for_its_own_instances(configs):
    place(configs["preprocessor"], "kind: KIND_GPU count: 3 gpus: [ 1 ]")
    place(configs["classifier"], "kind: KIND_GPU count: 1 gpus: [ 0, 1 ]")
    assert pool_bytes(configs, gpus=2, images_in_flight=10) == {1: IMAGE_BYTES * (64 * 3 + 64 * 2 + 10)}


def test_pool_grows_with_batch_instances_and_images_in_flight(configs):
    def size(group="kind: KIND_GPU count: 1", batch=64, in_flight=32):
        place(configs["preprocessor"], group)
        configs["preprocessor"].max_batch_size = batch
        return pool_bytes(configs, gpus=1, images_in_flight=in_flight)[0]

    assert size() < size(batch=128) < size(batch=4096)
    assert size() < size(group="kind: KIND_GPU count: 4")
    assert size() < size(in_flight=1_000)


def test_no_option_is_set_below_the_default_pool_size():
    assert arguments({0: DEFAULT_POOL_BYTES}) == []
    assert arguments({0: 5, 1: DEFAULT_POOL_BYTES + 1}) == [f"--cuda-memory-pool-byte-size=1:{DEFAULT_POOL_BYTES + 1}"]


def test_cache_after_a_gpu_preprocessor_is_reported(configs):
    configs["classifier"].response_cache.enable = True
    assert uncacheable(configs, gpus=1) == []
    place(configs["preprocessor"], "kind: KIND_GPU")
    assert uncacheable(configs, gpus=1) == ["classifier"]
    configs["classifier"].response_cache.enable = False
    assert uncacheable(configs, gpus=1) == []
