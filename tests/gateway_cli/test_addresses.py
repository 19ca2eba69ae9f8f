"""--gateway and --triton: every address is asked what it is."""

import pytest
import typer.main
from typer.testing import CliRunner

from gateway.errors import UserError
from gateway_cli.addresses import WrongAddress
from gateway_cli.main import app
from gateway_local.server import EmbeddedTriton
from tests.processes import free_port
from tests.services import stub_service

NOTHING = "127.0.0.1:1"


@pytest.fixture(scope="module")
def service():
    with stub_service() as url:
        yield url


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """The HTTP and the gRPC address of a gateway with API keys."""
    from gateway.keys import add_key

    keys, port = tmp_path_factory.mktemp("keys") / "keys.txt", free_port()
    add_key(keys, "somebody")
    with stub_service(api_keys_file=keys, grpc_port=port) as url:
        yield url, f"127.0.0.1:{port}"


def refused(*arguments: object) -> str:
    """The error of a command whose address is wrong."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert isinstance(result.exception, WrongAddress), result.output
    return str(result.exception)


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_gateway_given_as_triton(service, scheme):
    host = scheme + service.removeprefix("http://")
    error = refused("model", "list", "--triton", host)
    assert "this is the gateway's HTTP port; give the gRPC port of Triton" in error
    assert "--gateway" not in error
    assert f"write --gateway {service}" in refused("model", "parity", "flowers", "--triton", host)


def test_gateway_with_keys_is_recognised(guarded):
    """No key is sent to find out."""
    http, grpc = guarded
    assert "the gateway's HTTP port" in refused("model", "list", "--triton", http)
    assert "the gateway's gRPC port" in refused("model", "list", "--triton", grpc)
    assert "the gateway's gRPC port; give the gateway's HTTP address" in refused("classify", ".", "--gateway", grpc)


def test_triton_given_as_gateway(light_triton: EmbeddedTriton):
    error = refused("classify", ".", "--gateway", light_triton.url)
    assert "this is Triton's gRPC port; give the gateway's HTTP address, such as http://127.0.0.1:8080" in error
    assert "Triton's HTTP port; give its gRPC port" in refused("model", "list", "--triton", light_triton.http_url)
    error = refused("model", "compare", "flowers", 1, 2, ".", "--gateway", f"http://{light_triton.url}")
    assert f"write --triton {light_triton.url}, or" in error


@pytest.mark.parametrize("given", ["localhost", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:port", ":8001"])
def test_form_of_a_triton_address(given):
    assert "the form HOST:PORT" in refused("model", "list", "--triton", given)


def test_form_of_a_gateway_address():
    assert "the form http://HOST:PORT" in refused("classify", ".", "--gateway", "ftp://127.0.0.1:8080")


@pytest.mark.parametrize("option", ["--triton", "--gateway"])
def test_nothing_at_the_address(option, tmp_path):
    """The error is of the command, and neither of gRPC nor of httpx."""
    labels = tmp_path / "labels.csv"
    labels.write_text("request_id,index,label\n5,0,cat\n")
    arguments = ["log", "import", labels] if option == "--gateway" else ["model", "remove", "flowers"]
    result = CliRunner().invoke(app, [*map(str, arguments), option, NOTHING])
    assert isinstance(result.exception, UserError)
    assert not isinstance(result.exception, WrongAddress)


@pytest.mark.parametrize("arguments", [("model", "list"), ("model", "parity", "flowers")])
def test_former_option_of_triton(service, arguments, tmp_path):
    assert "--triton" in refused(*arguments, "--url", service)
    result = CliRunner().invoke(app, [*arguments, "--url", NOTHING, f"--model-repository={tmp_path}"])
    assert "warning: --url is now --triton" in result.output


def test_former_option_of_the_gateway(service, tmp_path):
    labels = tmp_path / "labels.csv"
    labels.write_text("request_id,index,label\n")
    result = CliRunner().invoke(app, ["log", "import", str(labels), "--url", service])
    assert "warning: --url is now --gateway" in result.output
    new = CliRunner().invoke(app, ["log", "import", str(labels), "--gateway", service])
    assert "warning" not in new.output
    assert result.exit_code == new.exit_code


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
    assert {"classify", "stream", "import", "explain", "parity", "compare"} <= set(shown["--gateway"])
    assert {"add", "list", "remove", "labels", "versions", "parity", "evaluate", "compare", "drift"} <= set(
        shown["--triton"]
    )
