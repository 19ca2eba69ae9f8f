"""Routes for images: their description, HEAD, first requests, and the path past the routing of FastAPI."""

import asyncio
from typing import Annotated

import pytest
from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.api.parameters import PredictParameters, invalid_parameter, query_parameters
from gateway.errors import InvalidParameter
from tests.services import ROUTES, Client

REFUSED = {"/predict": 405, "/nothing": 404, "/assets/none.js": 404}
"""Paths that are not read, and the status that says so."""
PATHS = [
    *(path for path, route in ROUTES.literal.items() if "GET" in route.methods),
    *("/assets/page.js", "/docs/assets/swagger-ui.css"),
    *("/models/ensemble_model", "/v2/models/ensemble_model"),
    *REFUSED,
]


@pytest.mark.parametrize("path", PATHS)
def test_head_equals_get_without_a_body(client, path):
    get, head = client.get(path), client.request("HEAD", path)
    assert (head.status_code, head.content) == (REFUSED.get(path, get.status_code), b"")
    changing = {"x-request-id", "server-timing"} | ({"content-length"} if path == "/metrics" else set())
    assert {name: value for name, value in head.headers.items() if name not in changing} == {
        name: value for name, value in get.headers.items() if name not in changing
    }


@pytest.mark.parametrize("path", ["/limits", "/nothing"])
def test_head_sends_no_body(client, path):
    """The test reads the messages of the application: httpx would drop a body."""
    _, *rest = client.ask("HEAD", path)
    assert not any(message.get("body") for message in rest)


VALUES = st.sampled_from(["", "0", "1", "7", "1.5", "cat", "a%2Cb", "%E2%98%83", "nan", "-1", "kserve-v1", "x+y", "%"])
NAMES = st.sampled_from([*PredictParameters.model_fields, "topk", "Labels", ""])
QUERIES = st.lists(st.tuples(NAMES, VALUES).map("=".join) | NAMES, max_size=6).map("&".join)


def refused(error: RequestValidationError) -> str:
    return invalid_parameter([dict(each) for each in error.errors()], PredictParameters.model_fields).message


@pytest.fixture(scope="module")
def fastapis():
    """FastAPI's own result for a URL."""
    app = FastAPI()

    @app.get("/")
    async def read(parameters: Annotated[PredictParameters, Query()]) -> JSONResponse:
        return JSONResponse(parameters.model_dump(mode="json"))

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(refused(error), 422)

    loop = asyncio.new_event_loop()
    yield Client(loop, app, {})
    loop.close()


@given(query=QUERIES)
def test_url_parameters_are_parsed_like_fastapi(fastapis, query):
    answer = fastapis.get(f"/?{query}")
    try:
        read: object = query_parameters(PredictParameters, query.encode()).model_dump(mode="json")
    except InvalidParameter as error:
        read = error.message

    assert read == answer.json()
