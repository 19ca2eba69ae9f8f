"""The body of POST /v2/repository/index: a small JSON object, read within a limit."""

from dataclasses import replace

import pytest

from gateway_plugins.oip.routes.inspection import MAX_INDEX_BYTES
from tests.doubles.backend import MODEL, StubBackend
from tests.services import client_of


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
def test_body_is_small_and_valid(body, status):
    with client_of() as http:
        answer = http.post("/v2/repository/index", content=body)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()) == {"error"}


def test_model_that_is_not_loaded_is_listed_with_its_reason():
    missing = replace(MODEL, name="missing", versions=(), ready=False, reason="out of memory")
    with client_of(StubBackend(infos=(MODEL, missing))) as http:
        listed = http.post("/v2/repository/index").json()
        ready = http.post("/v2/repository/index", json={"ready": True}).json()
        statistics = http.get("/v2/models/stats")
    assert listed[-1] == {"name": "missing", "version": "", "state": "UNAVAILABLE", "reason": "out of memory"}
    assert [each["name"] for each in ready] == [MODEL.name]
    assert statistics.status_code == 200
