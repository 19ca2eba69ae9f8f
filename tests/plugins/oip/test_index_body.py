"""The body of POST /v2/repository/index: a small JSON object, read within a limit."""

import pytest

from gateway_plugins.oip.routes.inspection import MAX_INDEX_BYTES
from tests.services import client_of


@pytest.fixture
def client():
    with client_of() as http:
        yield http


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"{}", 200),
        (b'{"ready": true}', 200),
        (b"{}" + b" " * (MAX_INDEX_BYTES - 2), 200),
        (b"{}" + b" " * (MAX_INDEX_BYTES - 1), 413),
        (b"\0", 400),
        (b"[]", 400),
        (b'{"ready": NaN}', 400),
        (b'{"ready": 1}', 422),
    ],
)
def test_body_is_small_and_valid(client, body, status):
    answer = client.post("/v2/repository/index", content=body)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()) == {"error"}
