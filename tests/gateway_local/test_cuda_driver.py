"""The CUDA driver, played by a small library: its GPUs, its errors, and what Triton's container makes of them.

No machine without a GPU can show these; the program loads the library as it loads the driver's own.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.triton.model_config import ModelInstanceGroup, read_model_config
from gateway_machine.capacity import Costs, pinned_pool_bytes, plan
from tests.processes import python

SOURCE = """
#include <stdlib.h>
static int number(const char *name, int other) { const char *text = getenv(name); return text ? atoi(text) : other; }
int cuInit(unsigned flags) { return number("PLAYED_ERROR", 0); }
int cuDeviceGetCount(int *count) { *count = number("PLAYED_GPUS", 1); return 0; }
int cuDriverGetVersion(int *version) { *version = number("PLAYED_CUDA", 13040); return 0; }
"""
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "cuda.c").write_text(SOURCE)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "cuda.c"], check=True)
    return folder


@pytest.fixture
def run(library):
    def run(*command: str, code: int = 0, **variables: object) -> "subprocess.CompletedProcess[str]":
        played = {name: str(value) for name, value in variables.items()}
        return python(*command, code=code, env={**os.environ, "LD_LIBRARY_PATH": str(library), **played})

    return run


@pytest.mark.parametrize("gpus", [1, 8])
def test_gpus_of_the_driver_are_counted(run, gpus):
    code = "from gateway_machine.gpus import gpu_count, gpu_fault; print(gpu_count(), repr(gpu_fault()))"
    assert run("-c", code, PLAYED_GPUS=gpus).stdout == f"{gpus} ''\n"


@pytest.mark.parametrize(
    ("played", "said"),
    [
        ({"PLAYED_ERROR": 100}, "CUDA error 100: the driver sees no GPU"),
        ({"PLAYED_GPUS": 0}, "CUDA error 100: the driver sees no GPU"),
        ({"PLAYED_ERROR": 803}, "CUDA error 803: the driver's library and its kernel module have different versions"),
        ({"PLAYED_ERROR": 804, "PLAYED_CUDA": 12020}, "CUDA error 804: the driver is too old for the CUDA"),
        ({"PLAYED_ERROR": 12345}, "CUDA error 12345: cuda.h explains it"),
    ],
)
def test_errors_have_their_number_and_advice(run, played, said):
    program = ("-m", "gateway_local.sized_triton", "--require-gpu", "tritonserver", "--model-repository=/m")
    done = run(*program, code=1, **played)
    assert said in done.stderr
    if "PLAYED_CUDA" in played:
        assert "the driver runs CUDA 12.2 at most" in done.stderr


def test_container_with_gpus_gets_networks_on_them(run, repository, tmp_path):
    """The whole command of the GPU image, with a server that prints its arguments."""
    server = tmp_path / "tritonserver"
    server.write_text('#!/bin/sh\n[ "$1" = --help ] || echo "$@"\n')
    server.chmod(0o755)
    command = [str(server), f"--model-repository={repository}"]
    program = ("-m", "gateway_local.sized_triton", "--require-gpu", *command)
    played = {"PLAYED_GPUS": 8, "TMPDIR": tmp_path, "GATEWAY_TRITON_ALONE": "true", "GATEWAY_CORES": 1}
    done = run(*program, **played, GATEWAY_COSTS="gpu_network_ms=500")
    # 2 images/s on each GPU: one preprocessor would do, and the smallest number is started.
    assert "about 16 images/s, limited by network" in done.stderr
    path, *options = done.stdout.split()
    sized = Path(path.partition("=")[2]) / "classifier" / "configs" / "sized.pbtxt"
    (group,) = read_model_config(sized).instance_group
    assert (group.kind, group.count) == (ModelInstanceGroup.KIND_GPU, 2)
    chosen = plan(1, 8, Costs(gpu_network_ms=500), triton_alone=True)
    image_bytes = 3 * 224 * 224 * 4 + 4
    assert f"--pinned-memory-pool-byte-size={pinned_pool_bytes(image_bytes, chosen.all_images_in_flight)}" in options
    done = run(*program, "--pinned-memory-pool-byte-size=1", **played)
    assert done.stdout.count("--pinned-memory-pool-byte-size") == 1
