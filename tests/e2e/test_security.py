"""Keys, headers and request ids through a real server, byte by byte where a client would tidy up."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_plugins.keys.key_file import add_key, remove_key
from tests.e2e.conftest import StartGateway
from tests.keys import key_of
from tests.processes import Gateway


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def key(keys: Path) -> str:
    return add_key(keys, "mobile")


@pytest.fixture(scope="module")
def guarded(start_gateway: StartGateway, light_triton, keys: Path, key: str) -> Iterator[Gateway]:
    with start_gateway(triton_url=light_triton.url, api_keys_file=keys, log_level="debug", workers=2) as running:
        yield running


def exchange(gateway: Gateway, request: bytes) -> bytes:
    """What comes back for a request until the server closes the connection or has said nothing for a while."""
    received = b""
    with gateway.connect() as connection, contextlib.suppress(TimeoutError):
        connection.sendall(request)
        while chunk := connection.recv(65_536):
            received += chunk
            connection.settimeout(0.5)
    return received


def test_every_worker_refuses_a_removed_key(guarded, keys):
    headers = key_of(keys, "temporary")

    def statuses() -> set[int]:
        # A connection for each request, so that both workers are met.
        found = set()
        for _ in range(20):
            with guarded.client(headers=headers) as client:
                found.add(client.get("/models").status_code)
        return found

    assert statuses() == {200}
    remove_key(keys, "temporary")
    assert statuses() == {401}


def test_refused_request_gets_no_100_continue(guarded):
    answer = exchange(
        guarded,
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: 1000000\r\n"
        b"Expect: 100-continue\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"100 Continue" not in answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_no_response_names_the_server(gateway, request_bytes):
    answer = exchange(gateway, request_bytes)
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 ")
    assert b"\r\nserver:" not in head
    assert b"uvicorn" not in answer.lower()


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n ", b"\x00"])
def test_line_end_in_request_id_adds_no_header(gateway, ending):
    request = b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Request-ID: a%sSet-Cookie: x=1\r\nConnection: close\r\n\r\n"
    lines = exchange(gateway, request % ending).partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert lines[0].split()[1] in {b"200", b"400"}
    assert not [line for line in lines if line.lower().startswith(b"set-cookie")]
