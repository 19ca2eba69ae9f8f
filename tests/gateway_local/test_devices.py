"""The embedded Triton's arguments and environment for this machine's GPUs."""

import shutil

import pytest

from gateway.machine.capacity import plan
from gateway.machine.gpus import Gpus
from gateway_local.devices import HIDE, NO_GPU, CacheOnGpu, Devices, choose_devices
from gateway_local.memory_plan import sized_configs
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_local.runtime.base import Runtime
from gateway_local.server import EmbeddedTriton


@pytest.fixture
def repository(tmp_path):
    ignore = shutil.ignore_patterns("model.pt", "__pycache__")
    return shutil.copytree(DEFAULT_MODEL_REPOSITORY, tmp_path / "models", ignore=ignore)


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


def test_hidden_gpu_is_hidden_from_the_server_process(repository, tmp_path, monkeypatch):
    program = tmp_path / "tritonserver"
    program.write_text('#!/bin/sh\necho "sees ${CUDA_VISIBLE_DEVICES-all}"\n')
    program.chmod(0o755)
    lines = []
    server = EmbeddedTriton(Runtime(program, tmp_path, tmp_path, ()), repository, on_log=lines.append, environment=HIDE)
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
