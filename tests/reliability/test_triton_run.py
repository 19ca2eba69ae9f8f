"""`gateway triton run`: a Triton that dies is started again on the same ports, and a signal ends all of it."""

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from tritonclient.grpc import InferenceServerClient

from tests.processes import PROJECT, environment, free_port, is_gone, wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_triton_that_dies_is_started_again(light_repository, tmp_path):
    port, log = free_port(), tmp_path / "run.log"
    ports = [f"--grpc-port={port}", "--http-port=0", "--metrics-port=0"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway_cli", "triton", "run", f"--model-repository={light_repository}", *ports],
            env=environment(),
            cwd=PROJECT,
            stdout=output,
            stderr=output,
        )

    def server() -> psutil.Process | None:
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                if "tritonserver" in child.name() and child.status() != psutil.STATUS_ZOMBIE:
                    return child
            except psutil.NoSuchProcess:
                continue
        return None

    try:
        wait_for(lambda: "listens on" in log.read_text(), process=process, timeout_seconds=120)
        first = server()
        # As it ends when its Python backend's shared memory is damaged.
        os.kill(first.pid, signal.SIGABRT)
        wait_for(
            lambda: re.search(r"Triton answers again after", log.read_text()), process=process, timeout_seconds=120
        )
        assert "Triton ended with code -6; starting it again in 0.5 s" in log.read_text()
        second = server()
        assert second.pid != first.pid
        with InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.is_model_ready("ensemble_model")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert is_gone(second)
    finally:
        process.kill()
        process.wait()
