"""The checks of settings, keys and ports in `gateway doctor`."""

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gateway.findings import Level
from gateway.keys import add_key
from gateway_local.doctor import configuration
from tests.processes import free_port
from tests.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings_but_the_test_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in [name for name in os.environ if name.upper().startswith("GATEWAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def settings_on(port: int) -> Settings:
    return Settings(_env_file=None, port=port)


def test_valid_settings_list_the_variables_set(monkeypatch):
    monkeypatch.setenv("GATEWAY_WORKERS", "2")
    settings, finding = configuration.settings()
    assert settings.workers == 2
    assert (finding.level, finding.text) == (Level.OK, "valid: GATEWAY_WORKERS")


def test_invalid_settings_fail_and_defaults_are_checked(monkeypatch):
    monkeypatch.setenv("GATEWAY_WORKERS", "0")
    settings, finding = configuration.settings()
    assert settings.workers == 1
    assert finding.level is Level.FAIL
    assert finding.text.startswith("GATEWAY_WORKERS='0'")


def test_api_without_keys_passes_with_a_note():
    finding = configuration.api_keys(None)
    assert finding.level is Level.OK
    assert finding.text.startswith("off: anyone who reaches the port can use the API")


def test_keys_are_counted(tmp_path):
    add_key(tmp_path / "keys", "mobile")
    finding = configuration.api_keys(tmp_path / "keys")
    assert (finding.level, finding.text) == (Level.OK, f"1 in {tmp_path / 'keys'}")


@pytest.mark.parametrize("text", [None, "half a li"])
def test_unreadable_key_file_fails(tmp_path, text):
    if text is not None:
        (tmp_path / "keys").write_text(text)
    assert configuration.api_keys(tmp_path / "keys").level is Level.FAIL


def test_empty_key_file_is_a_warning(tmp_path):
    (tmp_path / "keys").touch()
    finding = configuration.api_keys(tmp_path / "keys")
    assert finding.level is Level.WARN
    assert "gateway key add" in finding.advice


def test_world_readable_key_file_is_a_warning(tmp_path):
    add_key(tmp_path / "keys", "mobile")
    (tmp_path / "keys").chmod(0o644)
    finding = configuration.api_keys(tmp_path / "keys")
    assert (finding.level, finding.advice) == (Level.WARN, f"chmod o-r {tmp_path / 'keys'}")


def test_admin_keys_are_checked(tmp_path):
    assert configuration.admin_keys(None).text == "off: models cannot be loaded or unloaded over HTTP"
    add_key(tmp_path / "keys", "operator")
    finding = configuration.admin_keys(tmp_path / "keys")
    assert (finding.level, finding.check, finding.text) == (Level.OK, "admin keys", f"1 in {tmp_path / 'keys'}")
    assert configuration.admin_keys(tmp_path / "none").level is Level.FAIL


def test_free_port_passes():
    assert configuration.api_port(settings_on(free_port())).level is Level.OK


def test_port_of_another_program_fails():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # `gateway doctor` must not wait for an answer for ever.
        threading.Thread(target=lambda: listener.accept()[0].close()).start()
        finding = configuration.api_port(settings_on(listener.getsockname()[1]))
    assert finding.level is Level.FAIL
    assert "is taken" in finding.text
    assert "GATEWAY_PORT" in finding.text


@pytest.fixture
def gateway_port() -> Iterator[int]:
    class Live(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status":"live"}')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Live) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_port_of_a_running_gateway_is_a_warning(gateway_port):
    finding = configuration.api_port(settings_on(gateway_port))
    assert finding.level is Level.WARN
    assert "in use by a gateway" in finding.text


def test_address_of_another_machine_fails():
    finding = configuration.api_port(Settings(_env_file=None, host="192.0.2.1"))
    assert finding.level is Level.FAIL
    assert "cannot listen on 192.0.2.1" in finding.text


def test_taken_triton_ports_are_a_warning(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(configuration, "TRITON_PORTS", {"gRPC": taken, "HTTP": free_port()})
        finding = configuration.triton_ports()
    assert finding.level is Level.WARN
    assert finding.text == f"taken on 127.0.0.1: gRPC {taken}"
    assert "--grpc-port" in finding.advice


def test_free_triton_ports_pass(monkeypatch):
    monkeypatch.setattr(configuration, "TRITON_PORTS", {"gRPC": free_port()})
    assert configuration.triton_ports().level is Level.OK
