"""The checks of settings and ports in `gateway doctor`."""

import os
import socket
import threading
from pathlib import Path

import pytest

from gateway.findings import Level
from gateway_local.doctor import configuration
from tests.doubles.http import Reply, http_server
from tests.processes import free_port
from tests.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings_but_the_test_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in [name for name in os.environ if name.upper().startswith("GATEWAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def settings_on(port: int) -> Settings:
    return Settings(_env_file=None, port=port)


@pytest.mark.parametrize(
    ("workers", "used", "level", "text"),
    [("2", 2, Level.OK, "valid: GATEWAY_WORKERS"), ("0", 1, Level.FAIL, "GATEWAY_WORKERS='0'")],
)
def test_settings_that_are_set_are_listed_and_defaults_replace_invalid_ones(monkeypatch, workers, used, level, text):
    monkeypatch.setenv("GATEWAY_WORKERS", workers)
    settings, finding = configuration.settings()
    assert (settings.workers, finding.level) == (used, level)
    assert finding.text.startswith(text)


def test_free_ports_pass_and_others_fail(monkeypatch):
    assert configuration.api_port(settings_on(free_port())).level is Level.OK
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # `gateway doctor` must not wait for an answer for ever.
        threading.Thread(target=lambda: listener.accept()[0].close()).start()
        taken = configuration.api_port(settings_on(listener.getsockname()[1]))
    elsewhere = configuration.api_port(Settings(_env_file=None, host="192.0.2.1"))
    for finding, words in ((taken, "is taken"), (taken, "GATEWAY_PORT"), (elsewhere, "cannot listen on 192.0.2.1")):
        assert finding.level is Level.FAIL
        assert words in finding.text
    monkeypatch.setattr(configuration, "TRITON_PORTS", {"gRPC": free_port()})
    assert configuration.triton_ports().level is Level.OK


def test_port_of_a_running_gateway_is_a_warning():
    with http_server(lambda asked: Reply(200, b'{"status":"live"}')) as port:
        finding = configuration.api_port(settings_on(port))
    assert finding.level is Level.WARN
    assert "in use by a gateway" in finding.text


def test_taken_triton_ports_are_a_warning(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(configuration, "TRITON_PORTS", {"gRPC": taken, "HTTP": free_port()})
        finding = configuration.triton_ports()
    assert finding.level is Level.WARN
    assert finding.text == f"taken on 127.0.0.1: gRPC {taken}"
    assert "--grpc-port" in finding.advice
