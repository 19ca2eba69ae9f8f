"""`POST /predict` bypasses FastAPI's routing, and behaves the same."""

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
from tests.doubles.backend import PNG
from tests.services import Client, client_of

VALUES = st.sampled_from(["", "0", "1", "7", "1.5", "cat", "a%2Cb", "%E2%98%83", "nan", "-1", "kserve-v1", "x+y", "%"])
NAMES = st.sampled_from([*PredictParameters.model_fields, "topk", "Labels", ""])
QUERIES = st.lists(st.tuples(NAMES, VALUES).map("=".join) | NAMES, max_size=6).map("&".join)


def refused(error: RequestValidationError) -> str:
    return invalid_parameter([dict(each) for each in error.errors()], PredictParameters.model_fields).message


@pytest.fixture(scope="module")
def fastapis():
    """What FastAPI itself makes of a URL."""
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


def test_unusual_requests_are_left_to_fastapi():
    with client_of() as client:
        wrong_method, wrong_path = client.request("PUT", "/predict"), client.post("/predict/", files={"files": PNG})

    assert wrong_method.json()["code"] == "method_not_allowed"
    assert (wrong_path.status_code, wrong_path.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "content_type", "status", "code"),
    [
        ("/predict?top_k=0", "image/png", 422, "invalid_parameter"),
        ("/predict", "text/plain", 415, "unsupported_media_type"),
    ],
)
def test_errors_of_the_fast_path_are_problem_documents(path, content_type, status, code):
    with client_of() as client:
        answer = client.post(path, content=PNG, headers={"content-type": content_type})
        metrics = client.get("/metrics").text

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["code"] == code
    assert f'gateway_requests_total{{code="{code}",route="/predict",status="{status}"}}' in metrics
