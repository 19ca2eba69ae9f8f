"""Headers and request ids of a real server, byte by byte where a client would tidy up."""

import contextlib

import pytest

from tests.processes import Gateway


def exchange(gateway: Gateway, request: bytes) -> bytes:
    """What comes back for a request until the server closes the connection or has said nothing for a while."""
    received = b""
    with gateway.connect() as connection, contextlib.suppress(TimeoutError):
        connection.sendall(request)
        while chunk := connection.recv(65_536):
            received += chunk
            connection.settimeout(0.5)
    return received


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
