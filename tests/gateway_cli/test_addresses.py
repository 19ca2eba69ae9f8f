"""--gateway and --triton: every address is asked what it is."""

import pytest
import typer
import typer.main

from gateway.errors import UserError
from gateway.plugins.keys.key_file import add_key
from gateway_cli.addresses import WrongAddress
from gateway_cli.main import app
from gateway_local.server import EmbeddedTriton
from tests.commands import gateway, refusal
from tests.processes import free_port
from tests.services import stub_service

NOTHING = "127.0.0.1:1"


@pytest.fixture(scope="module")
def service():
    with stub_service() as url:
        yield url


def refused(*words: object) -> str:
    """The error of a command whose address is wrong."""
    return refusal(*words, kind=WrongAddress)


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_gateway_given_as_triton(service, scheme):
    host = scheme + service.removeprefix("http://")
    error = refused("model", "list", "--triton", host)
    assert "this is the gateway's HTTP port; give the gRPC port of Triton" in error


def test_gateway_with_keys_is_recognised(tmp_path):
    """No key is sent to find out."""
    port = free_port()
    add_key(tmp_path / "keys.txt", "somebody")
    with stub_service(api_keys_file=tmp_path / "keys.txt", grpc_port=port) as http:
        grpc = f"127.0.0.1:{port}"
        assert "the gateway's HTTP port" in refused("model", "list", "--triton", http)
        assert "the gateway's gRPC port" in refused("model", "list", "--triton", grpc)
        assert "the gateway's gRPC port; give the gateway's HTTP address" in refused("classify", ".", "--gateway", grpc)


def test_triton_given_as_gateway(light_triton: EmbeddedTriton):
    error = refused("classify", ".", "--gateway", light_triton.url)
    assert "this is Triton's gRPC port; give the gateway's HTTP address, such as http://127.0.0.1:8080" in error
    assert "Triton's HTTP port; give its gRPC port" in refused("model", "list", "--triton", light_triton.http_url)


@pytest.mark.parametrize("given", ["localhost", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:port", ":8001"])
def test_form_of_an_address(given):
    assert "the form HOST:PORT" in refused("model", "list", "--triton", given)
    assert "the form http://HOST:PORT" in refused("classify", ".", "--gateway", "ftp://127.0.0.1:8080")


@pytest.mark.parametrize(
    "words", [("predictions", "import", "labels.csv", "--gateway"), ("model", "remove", "flowers", "--triton")]
)
def test_nothing_at_the_address(words, tmp_path, monkeypatch):
    """The error is of the command, and neither of gRPC nor of httpx."""
    (tmp_path / "labels.csv").write_text("request_id,index,label\n5,0,cat\n")
    monkeypatch.chdir(tmp_path)
    error = gateway(*words, NOTHING, code=1).exception
    assert isinstance(error, UserError)
    assert not isinstance(error, WrongAddress)


def test_one_name_for_each_kind():
    """No command shows --url, and every --triton of a command and every --gateway is checked."""

    def commands(group):
        for each in group.commands.values():
            yield from commands(each) if hasattr(each, "commands") else [each]

    shown = {
        option: [command.name for command in commands(typer.main.get_command(app)) for each in command.params
                 if option in each.opts and not each.hidden]
        for option in ("--url", "--gateway", "--triton")
    }  # fmt: skip
    assert shown["--url"] == []
    assert {"classify", "stream", "import"} <= set(shown["--gateway"])
    assert {"add", "list", "remove", "use", "verify", "evaluate", "compare", "drift"} <= set(shown["--triton"])
