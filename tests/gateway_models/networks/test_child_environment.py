"""Which variables of the service its short-lived and its writing children have, as /proc has them."""

import socket
import subprocess

import psutil
import pytest

from gateway_models.networks.function_process import OriginalProcess
from gateway_models.networks.isolation import start_process
from gateway_predictions.writer import WriterOptions
from gateway_predictions.writer import start as start_writer
from tests.processes import wait_for

SECRET = {"GATEWAY_CACHE_SECRET", "DATABASE_PASSWORD", "HF_TOKEN"}
CLOUD = {"AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "https_proxy"}
NETWORKS = {"OMP_NUM_THREADS", "MODEL_COLOUR"}


@pytest.fixture(autouse=True)
def variables(monkeypatch) -> None:
    for name in SECRET | CLOUD | NETWORKS:
        monkeypatch.setenv(name, "1")


def given(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> set[str]:
    """Which of the variables a process has; it is killed."""
    with process:
        found = wait_for(psutil.Process(process.pid).environ)  # it is empty for a moment
        process.kill()
    assert "PATH" in found
    return found.keys() & (SECRET | CLOUD | NETWORKS)


def test_job_and_original_have_what_networks_need():
    assert given(start_process()) == NETWORKS
    assert given(OriginalProcess("a function", lambda _: None)._process) == NETWORKS


@pytest.mark.parametrize(("url", "expected"), [("/tmp/log", set()), ("s3://bucket/log", CLOUD)])  # noqa: S108
def test_writer_of_the_log_has_credentials_only_for_a_bucket(url, expected):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert given(start_writer(theirs, WriterOptions(url, 1, 1, 1, 1, 1.0))) == expected
