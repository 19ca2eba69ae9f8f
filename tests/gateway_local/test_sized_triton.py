"""NVIDIA's image: tritonserver is started with a repository that is sized to the container."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.machine.capacity import SHARED_BYTES, Costs, pinned_pool_bytes, plan
from gateway.machine.cores import usable_cores
from gateway.machine.gpus import gpu_count
from gateway.triton.configs import ModelInstanceGroup, read_model_config
from gateway_local.sized_triton import container_plan, short_of_shared_memory, use_devices
from gateway_local.sizing import ARGUMENT
from tests.processes import PROJECT, python, wait_for

OPTION, LOAD_THREADS = "--grpc-infer-thread-count", "--model-load-thread-count"
SERVER = """#!/bin/sh
echo "$@"
exec sleep 60
"""


@pytest.fixture
def start(tmp_path, repository):
    """Starts the program in front of one that prints its arguments and stays, as tritonserver does."""
    started = []

    def run(*arguments: str, **variables: str) -> "subprocess.Popen[str]":
        server = tmp_path / "tritonserver"
        server.write_text(SERVER)
        server.chmod(0o755)
        command = [sys.executable, "-m", "gateway_local.sized_triton", str(server), f"--model-repository={repository}"]
        environment = {**os.environ, "TMPDIR": str(tmp_path), **variables}
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=PROJECT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        # With the process that links models, which looks every 2 s whether it may end.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def linked(words: list[str]) -> Path:
    return next(Path(word.partition("=")[2]) for word in words if word.startswith("--model-repository="))


def test_triton_replaces_the_program_and_gets_a_sized_repository(start, repository):
    """Models that are added later are linked, too."""
    process = start("--strict-readiness=false", GATEWAY_CORES="1")
    words = process.stdout.readline().split()
    assert words[1:3] == ["--strict-readiness=false", ARGUMENT]
    # The process itself is Triton now: signals and the exit code are its own.
    wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    config = read_model_config(linked(words) / "preprocessor" / "configs" / "sized.pbtxt")
    assert [group.count for group in config.instance_group] == [1]
    assert not list(repository.glob("*/configs"))
    shutil.copytree(repository / "ensemble_model", repository / "another")
    wait_for(lambda: (linked(words) / "another" / "config.pbtxt").exists())


@pytest.mark.parametrize("given", [[], [f"{OPTION}=5", f"{LOAD_THREADS}=1"]])
def test_threads_are_set_unless_they_are_given(start, given):
    process = start(*given, GATEWAY_CORES="1")
    words = process.stdout.readline().split()
    assert words[1:] == ([*given, ARGUMENT] if given else [ARGUMENT, f"{OPTION}=2", f"{LOAD_THREADS}=2"])


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU")
def test_container_without_a_gpu_does_not_start():
    done = python("-m", "gateway_local.sized_triton", "--require-gpu", "tritonserver", "--model-repository=/m", code=1)
    assert "no GPU can be seen" in done.stderr


CORES, SLOW = usable_cores(), Costs(gpu_network_ms=20)
USABLE = replace(plan(CORES, 1), all_cores=CORES)


@pytest.mark.parametrize(
    ("variables", "gpus", "nbytes", "wanted"),
    [
        *(({"GATEWAY_CORES": cores}, 1, None, USABLE) for cores in ("", "0", "4096")),
        ({"GATEWAY_CORES": "1"}, 0, None, replace(plan(1, 0), all_cores=1)),
        ({"GATEWAY_CORES": "1"}, 0, 2**20, replace(plan(1, 0), all_cores=1)),
        ({}, 1, USABLE.models_bytes, USABLE),
        ({"GATEWAY_TRITON_ALONE": "true"}, 1, None, replace(plan(CORES, 1, triton_alone=True), all_cores=CORES)),
        ({"GATEWAY_COSTS": "gpu_network_ms=20"}, 1, None, replace(plan(CORES, 1, SLOW), all_cores=CORES)),
    ],
)
def test_container_is_sized_for_its_cores_and_memory(variables, gpus, nbytes, wanted):
    """It never counts more cores than it may use."""
    assert container_plan(variables, gpus, nbytes) == wanted


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        ("all", {}),
        ("", {}),
        ("none", {"CUDA_VISIBLE_DEVICES": ""}),
        ("2,3", {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (" GPU-5f ", {"CUDA_VISIBLE_DEVICES": "GPU-5f", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    ],
)
def test_devices_are_those_of_the_variable(devices, wanted):
    environment = {"GATEWAY_DEVICES": devices}
    use_devices(environment)
    assert environment == {"GATEWAY_DEVICES": devices, **wanted}


def test_too_little_shared_memory_is_reported():
    chosen = plan(12, 1, triton_alone=True)
    assert not short_of_shared_memory(11 * SHARED_BYTES, chosen)
    assert "has 703 MiB, and preprocessors may need 704 MiB" in short_of_shared_memory(11 * SHARED_BYTES - 1, chosen)


DRIVER = """
#include <stdlib.h>
static int number(const char *name, int other) { const char *text = getenv(name); return text ? atoi(text) : other; }
int cuInit(unsigned flags) { return number("PLAYED_ERROR", 0); }
int cuDeviceGetCount(int *count) { *count = number("PLAYED_GPUS", 1); return 0; }
int cuGetErrorString(int error, const char **text) { *text = error == 100 ? "no device of 100" : NULL; return 0; }
"""
"""The CUDA driver, played by a small library: its GPUs and its errors, which no machine without a GPU can show.

The programs load it as they load the driver's own.
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "cuda.c").write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "cuda.c"], check=True)

    def run(*command: str, code: int = 0, **variables: object) -> "subprocess.CompletedProcess[str]":
        played = {name: str(value) for name, value in variables.items()}
        return python(*command, code=code, env={**os.environ, "LD_LIBRARY_PATH": str(folder), **played})

    return run


@pytest.mark.parametrize("gpus", [1, 8])
def test_gpus_of_the_driver_are_counted(run, gpus):
    code = "from gateway.machine.gpus import reported_gpus; print(reported_gpus())"
    assert f"count={gpus}, torch_sees_them=True, fault=''" in run("-c", code, PLAYED_GPUS=gpus).stdout


@pytest.mark.parametrize("played", [{"PLAYED_ERROR": 100}, {"PLAYED_GPUS": 0}])
def test_error_has_its_number_and_the_drivers_text(run, played):
    program = ("-m", "gateway_local.sized_triton", "--require-gpu", "tritonserver", "--model-repository=/m")
    assert "CUDA error 100: no device of 100" in run(*program, code=1, **played).stderr


def test_container_with_gpus_gets_networks_on_them(run, repository, tmp_path):
    """The whole command of the GPU image, with a server that prints its arguments."""
    server = tmp_path / "tritonserver"
    server.write_text('#!/bin/sh\necho "$@"\n')
    server.chmod(0o755)
    command = [str(server), f"--model-repository={repository}"]
    program = ("-m", "gateway_local.sized_triton", "--require-gpu", *command)
    played = {"PLAYED_GPUS": 8, "TMPDIR": tmp_path, "GATEWAY_TRITON_ALONE": "true", "GATEWAY_CORES": 1}
    done = run(*program, **played, GATEWAY_COSTS="gpu_network_ms=500")
    # 2 images/s on each GPU: one preprocessor would do, and the smallest number is started.
    assert "about 16 images/s, limited by the GPUs" in done.stderr
    path, *options = done.stdout.split()
    sized = Path(path.partition("=")[2]) / "classifier" / "configs" / "sized.pbtxt"
    (group,) = read_model_config(sized).instance_group
    assert (group.kind, group.count) == (ModelInstanceGroup.KIND_GPU, 2)
    chosen = plan(1, 8, Costs(gpu_network_ms=500), triton_alone=True)
    assert f"--pinned-memory-pool-byte-size={pinned_pool_bytes(chosen.all_images_in_flight)}" in options
    done = run(*program, "--pinned-memory-pool-byte-size=1", **played)
    assert done.stdout.count("--pinned-memory-pool-byte-size") == 1
    done = run(*program, **played, GATEWAY_DEVICES="none")
    assert "sized for 1 core, no GPU" in done.stderr
