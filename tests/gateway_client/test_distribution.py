"""The client is a separate distribution, which needs only httpx."""

import tomllib

from gateway.errors import ServiceError
from gateway.plugin_loading import errors_of, installed
from gateway_client.errors import SERVICE_CODES
from tests.processes import PROJECT, python

CLIENT = PROJECT / "gateway_client"


def test_codes_of_service_errors_are_those_of_the_gateway():
    """A code that is not among them is an image's or a request's, and is not tried again."""
    own = {"connection_lost", "unreachable", "unexpected_answer"}
    assert {code: retryable for code, retryable in SERVICE_CODES.items() if code not in own} == {
        kind.code: kind.retry_after_seconds is not None
        for kind in errors_of(installed())
        if issubclass(kind, ServiceError) and kind is not ServiceError
    }


def test_import_needs_only_httpx():
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(PROJECT)!r})\n"
        "import gateway_client\n"
        "print(gateway_client.Gateway.__module__)\n"
        "wrong = {'gateway', 'numpy', 'PIL', 'pydantic', 'fastapi', 'starlette'} & set(sys.modules)\n"
        "assert not wrong, wrong\n"
    )
    assert python("-P", "-c", code, cwd="/").stdout.strip() == "gateway_client.blocking"


def test_metadata_match_the_code():
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["httpx>=0.27"]
    assert (CLIENT / "py.typed").exists()
    for folder in (CLIENT, PROJECT / "native"):
        assert (folder / "LICENSE").read_text() == (PROJECT / "LICENSE").read_text()
