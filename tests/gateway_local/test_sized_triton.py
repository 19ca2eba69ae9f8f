"""NVIDIA's image: tritonserver is started with a repository that is sized to the container."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.triton.model_config import read_model_config
from gateway_local.sized_triton import container_plan, short_of_shared_memory, use_devices
from gateway_local.sizing import ARGUMENT
from gateway_machine.capacity import SHARED_BYTES, Costs, plan
from gateway_machine.cores import usable_cores
from gateway_machine.gpus import gpu_count
from tests.processes import PROJECT, python, wait_for

OPTION, LOAD_THREADS = "--grpc-infer-thread-count", "--model-load-thread-count"
SERVER = """#!/bin/sh
if [ "$1" = --help ]; then echo "{help}"; exit; fi
echo "$@"
exec sleep 60
"""


@pytest.fixture
def start(tmp_path, repository):
    """Starts the program in front of one that prints its arguments and stays, as tritonserver does."""
    started = []

    def run(*arguments: str, help_text: str = "", **variables: str) -> "subprocess.Popen[str]":
        server = tmp_path / "tritonserver"
        server.write_text(SERVER.format(help=help_text))
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
    process = start("--strict-readiness=false", GATEWAY_CORES="1")
    words = process.stdout.readline().split()
    assert words[1:] == ["--strict-readiness=false", ARGUMENT]
    # The process itself is Triton now: signals and the exit code are its own.
    wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    config = read_model_config(linked(words) / "preprocessor" / "configs" / "sized.pbtxt")
    assert [group.count for group in config.instance_group] == [1]
    assert not list(repository.glob("*/configs"))


def test_models_that_are_added_later_are_linked_and_sized(start, repository):
    process = start(GATEWAY_CORES="1")
    place = linked(process.stdout.readline().split())
    shutil.copytree(repository / "ensemble_model", repository / "another")
    wait_for(lambda: (place / "another" / "config.pbtxt").exists())


@pytest.mark.parametrize(
    ("help_text", "given", "wanted"),
    [
        ("", "", []),
        (OPTION, "", [f"{OPTION}=2"]),
        (OPTION, f"{OPTION}=5", []),
        (LOAD_THREADS, "", [f"{LOAD_THREADS}=2"]),
        (LOAD_THREADS, f"{LOAD_THREADS}=1", []),
    ],
)
def test_threads_are_set_where_the_server_has_the_option(start, help_text, given, wanted):
    process = start(*filter(None, [given]), help_text=help_text, GATEWAY_CORES="1")
    words = process.stdout.readline().split()
    assert words[1:] == [*filter(None, [given]), ARGUMENT, *wanted]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ("--require-gpu", "tritonserver", "--model-repository=/models"),
            "no GPU can be seen",
            marks=pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU"),
        ),
        (("tritonserver",), "--model-repository is missing"),
    ],
)
def test_container_that_cannot_serve_does_not_start(arguments, words):
    done = python("-m", "gateway_local.sized_triton", *arguments, code=1)
    assert words in done.stderr


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
        ("2,3", {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (" GPU-5f ", {"CUDA_VISIBLE_DEVICES": "GPU-5f", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    ],
)
def test_devices_are_those_of_the_variable(devices, wanted):
    environment = {"DEVICES": devices}
    use_devices(environment)
    assert environment == {"DEVICES": devices, **wanted}


def test_too_little_shared_memory_is_reported():
    chosen = plan(12, 1, triton_alone=True)
    assert not short_of_shared_memory(11 * SHARED_BYTES, chosen)
    assert "has 703 MiB, and preprocessors may need 704 MiB" in short_of_shared_memory(11 * SHARED_BYTES - 1, chosen)
