"""The embedded Triton on this machine's GPUs: arguments, environment, and memory between the steps."""

import pytest
from google.protobuf import text_format

from gateway.machine.capacity import plan
from gateway.machine.gpus import Gpus
from gateway.triton.configs import read_model_configs
from gateway_local.devices import (
    DEFAULT_POOL_BYTES,
    HIDE,
    NO_GPU,
    CacheOnGpu,
    Devices,
    arguments,
    choose_devices,
    pool_bytes,
)
from gateway_local.memory_plan import sized_configs
from tests.shipped import copy_models


def choose(repository, gpus, said=None):
    say = (lambda line: None) if said is None else said.append
    configs = sized_configs(repository, plan(2, gpus.usable))
    return choose_devices(configs, say, images_in_flight=256, gpus=gpus)


def on_gpu(repository, model, **changes):
    path = repository / model / "config.pbtxt"
    text = path.read_text()
    for old, new in {"KIND_CPU": "KIND_GPU", **changes}.items():
        text = text.replace(old, new)
    path.write_text(text)


PINNED = Devices(("--pinned-memory-pool-byte-size=268435456",))


@pytest.mark.parametrize(
    ("gpus", "damage", "devices"),
    [
        (Gpus(0), "", Devices(NO_GPU)),
        (Gpus(1), "", PINNED),
        (Gpus(1), "not a configuration {", PINNED),  # which Triton reports
    ],
)
def test_shipped_models_need_no_options(repository, gpus, damage, devices):
    if damage:
        (repository / "preprocessor" / "config.pbtxt").write_text(damage)
    said = []
    assert (choose(repository, gpus, said), said) == (devices, [])


def test_gpu_that_torch_cannot_use_is_hidden_from_triton(repository):
    said = []
    devices = choose(repository, Gpus(1, torch_sees_them=False), said)
    assert devices.environment == HIDE
    assert "models run on the CPU" in said[0]
    assert "torch.cuda.init()" in said[0]


IMAGE_BYTES = 3 * 224 * 224 * 4 + 4
"""PREPROCESSED_IMAGE fp32 and IMAGE_STATUS int32 of one row."""


def test_preprocessor_on_a_gpu_gets_a_pool_for_its_images(repository):
    on_gpu(repository, "preprocessor")
    said = []
    (option, _) = choose(repository, Gpus(1), said).arguments
    assert option == f"--cuda-memory-pool-byte-size=0:{IMAGE_BYTES * (64 * 4 + 256)}"
    assert option in said[0]


CACHE = {"response_cache { enable: false }": "response_cache { enable: true }"}


def test_cache_is_refused_behind_a_preprocessor_on_a_gpu_alone(repository):
    on_gpu(repository, "classifier", **CACHE)
    assert choose(repository, Gpus(1)) == PINNED
    on_gpu(repository, "preprocessor")
    with pytest.raises(CacheOnGpu, match="classifier: Triton's response cache reads inputs in host memory only"):
        choose(repository, Gpus(1))


@pytest.mark.parametrize(
    ("group", "batch", "gpus", "in_flight", "images"),
    [
        ("kind: KIND_CPU", 64, 2, 256, {}),
        ("kind: KIND_AUTO count: 2", 64, 0, 256, {}),
        ("kind: KIND_AUTO count: 2", 64, 1, 256, {0: 64 * 2 + 64 * 2 + 256}),
        ("kind: KIND_GPU count: 2", 64, 1, 256, {0: 64 * 2 + 64 * 2 + 256}),
        ("kind: KIND_GPU count: 4", 128, 1, 10, {0: 128 * 4 + 64 * 2 + 10}),
        ("count: 2", 64, 1, 256, {0: 64 * 2 + 64 * 2 + 256}),
        ("kind: KIND_GPU count: 3 gpus: [ 1 ]", 64, 2, 10, {1: 64 * 3 + 64 * 4 + 10}),
    ],
)
def test_pool_holds_running_batches_and_waiting_images(tmp_path, group, batch, gpus, in_flight, images):
    """The shipped models, with two instances of the network on each GPU."""
    configs = read_model_configs(copy_models(tmp_path / "models", "model.pt"))
    for name, written in {"classifier": "kind: KIND_AUTO count: 2", "preprocessor": group}.items():
        del configs[name].instance_group[:]
        text_format.Merge(f"instance_group [ {{ {written} }} ]", configs[name])
    configs["preprocessor"].max_batch_size = batch
    wanted = {gpu: IMAGE_BYTES * count for gpu, count in images.items()}
    assert pool_bytes(configs, gpus=gpus, images_in_flight=in_flight) == wanted


def test_no_option_is_set_below_the_default_pool_size():
    assert arguments({0: DEFAULT_POOL_BYTES}) == []
    assert arguments({0: 5, 1: DEFAULT_POOL_BYTES + 1}) == [f"--cuda-memory-pool-byte-size=1:{DEFAULT_POOL_BYTES + 1}"]
