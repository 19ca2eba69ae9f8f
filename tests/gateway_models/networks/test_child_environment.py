"""Which variables of the service its short-lived children have, as /proc has them."""

import subprocess

import psutil
import pytest

from gateway_models.networks.isolation import start_process
from tests.processes import wait_for

SECRET = {"GATEWAY_CACHE_SECRET", "DATABASE_PASSWORD", "HF_TOKEN"}
CLOUD = {"AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "https_proxy"}
NETWORKS = {"OMP_NUM_THREADS", "MODEL_COLOUR"}


@pytest.fixture(autouse=True)
def variables(monkeypatch) -> None:
    for name in SECRET | CLOUD | NETWORKS:
        monkeypatch.setenv(name, "1")


def given(process: "subprocess.Popen[str]") -> set[str]:
    """Which of the variables a process has; it is killed."""
    with process:
        found = wait_for(psutil.Process(process.pid).environ)  # it is empty for a moment
        process.kill()
    assert "PATH" in found
    return found.keys() & (SECRET | CLOUD | NETWORKS)


def test_jobs_have_what_networks_need():
    assert given(start_process()) == NETWORKS
