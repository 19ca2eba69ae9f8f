"""The client is a separate distribution: it needs only httpx, and nothing of the gateway."""

import tomllib

import gateway
from gateway.plugins import errors_of, installed
from gateway_client import __version__, errors
from tests.processes import PROJECT, python

CLIENT = PROJECT / "gateway_client"


def test_error_types_are_those_of_the_gateway():
    assert {
        kind.code: (
            kind.__name__,
            kind.__mro__[1].__name__,
            kind.status,
            getattr(kind, "retry_after_seconds", None) is not None,
        )
        for kind in errors_of(installed())
    } == {
        code: (kind.__name__, kind.__mro__[1].__name__, kind.status, kind.retryable)
        for code, kind in errors.BY_CODE.items()
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
    assert __version__ == gateway.__version__
    assert project["dependencies"] == ["httpx>=0.27"]
    assert (CLIENT / "py.typed").exists()
    for folder in (CLIENT, PROJECT / "native"):
        assert (folder / "LICENSE").read_text() == (PROJECT / "LICENSE").read_text()
