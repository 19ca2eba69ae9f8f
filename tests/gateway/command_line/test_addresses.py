"""--gateway and --triton: the form of an address, and the errors if nothing answers, or another server does."""

import json

import pytest
import typer
import typer.main

from gateway.command_line.addresses import WrongAddress
from gateway.command_line.main import app
from gateway.errors import UserError
from tests.commands import gateway, refusal
from tests.services import stub_service

NOTHING = "127.0.0.1:1"


def refused(*words: object) -> str:
    """The error of a command whose address is wrong."""
    return refusal(*words, kind=WrongAddress)


@pytest.mark.parametrize("given", ["localhost", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:port", ":8001"])
def test_form_of_an_address(given):
    assert "the form HOST:PORT" in refused("model", "remove", "flowers", "--triton", given)
    assert "the form http://HOST:PORT" in refused("classify", ".", "--gateway", "ftp://127.0.0.1:8080")


def test_gateway_given_as_triton():
    """The answer of its HTTP port becomes an error of the command that names the address."""
    with stub_service() as http:
        address = http.removeprefix("http://")
        assert address in refusal("model", "verify", "ensemble_model", "docs/examples", "--triton", address)


@pytest.mark.parametrize(
    "words", [("predictions", "import", "labels.json", "--gateway"), ("model", "remove", "flowers", "--triton")]
)
def test_nothing_at_the_address(words, tmp_path, monkeypatch):
    """The error is of the command, and neither of gRPC nor of httpx."""
    task = {"data": {"request_id": "r", "index": 0, "model": "m"}}
    result = {"from_name": "choice", "value": {"choices": ["cat"]}}
    (tmp_path / "labels.json").write_text(json.dumps([{**task, "annotations": [{"result": [result]}]}]))
    monkeypatch.chdir(tmp_path)
    error = gateway(*words, NOTHING, code=1).exception
    assert isinstance(error, UserError)
    assert not isinstance(error, WrongAddress)


def test_one_name_for_each_kind():
    """No command shows --url, and every --triton of a command and every --gateway is checked."""

    def commands(group):
        for name in group.commands:
            each = group.get_command(None, name)
            yield from commands(each) if hasattr(each, "commands") else [each]

    shown = {
        option: [command.name for command in commands(typer.main.get_command(app)) for each in command.params
                 if option in each.opts and not each.hidden]
        for option in ("--url", "--gateway", "--triton")
    }  # fmt: skip
    assert shown["--url"] == []
    assert {"classify", "stream", "import"} <= set(shown["--gateway"])
    assert {"add", "remove", "use", "verify", "evaluate", "compare", "drift"} <= set(shown["--triton"])
