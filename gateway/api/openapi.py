"""GET /openapi.json: FastAPI's document, completed: media types of errors and results, error codes."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse, Response

from gateway.api.problems import format_of
from gateway.api.route_table import Access, RouteTable, traits
from gateway.api.schemas import ModelOut, StreamedSummary
from gateway.errors import PROBLEM_MEDIA_TYPE
from gateway.hooks import ErrorFormat

router = APIRouter(include_in_schema=False)

PROBLEM = {"$ref": "#/components/schemas/Problem"}
RESULT_STATUSES = ("413", "415", "422", "502", "503", "504")
"""Error statuses whose body may also be a list of results: when none of several files was classified."""

LINES = "x-itemSchema"
"""The schema of each line of JSON lines: OpenAPI 3.2 has `itemSchema` for it, 3.1 has nothing."""

_REFERENCE = "#/components/schemas/{model}"
_documents: WeakKeyDictionary[FastAPI, asyncio.Future[bytes]] = WeakKeyDictionary()
"""The OpenAPI document of each application as JSON, from the first request for it on."""

Change = Callable[[dict[str, Any]], None]
"""Changes a document in place."""


def add(app: FastAPI, change: Change) -> None:
    """Have the application's document changed."""
    plain = app.openapi

    def changed() -> dict[str, Any]:
        schema = plain()
        change(schema)
        return schema

    app.openapi = changed  # type: ignore[method-assign]  # FastAPI's documented way


def complete(app: FastAPI, routes: RouteTable, formats: Sequence[ErrorFormat], codes: Sequence[str]) -> None:
    """Declare each response under its media type, and the `codes` of errors."""

    def change(schema: dict[str, Any]) -> None:
        for operations in schema["paths"].values():
            for operation in operations.values():
                for status, response in operation["responses"].items():
                    _declare_problem(status, response)
        # FastAPI's schemas for invalid parameters; this service returns problem documents instead.
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
        for route in routes:
            operation = schema["paths"].get(route.path, {}).get("post")  # a route may be hidden from the document
            if operation and route.traits.takes_images and format_of(route.path, formats) is None:
                _declare_results(operation["responses"], schema["components"]["schemas"])
        code = schema["components"]["schemas"]["Problem"]["properties"]["code"]
        code["description"] = f"Stable name of the error: {', '.join(f'`{each}`' for each in codes)}."
        for name, lines in _line_schemas().items():
            schema["components"]["schemas"].setdefault(name, lines)

    add(app, change)


def _declare_results(answers: dict[str, Any], schemas: dict[str, Any]) -> None:
    content = answers["200"].get("content", {})
    whole = content.get("application/json", {}).get("schema", {})
    results = whole.get("anyOf", ())
    for status in RESULT_STATUSES if results else ():  # a route of one image reports its error as a problem
        # Generated clients parse each body by the first media type that they know, and as the first schema
        # that fits.
        as_json = {"schema": {"anyOf": [PROBLEM, *results]}}
        answers[status]["content"] = {"application/json": as_json, **answers[status]["content"]}
    if documents := [*_lines(results or [whole], schemas)]:
        lines = "A line for each result as it is ready, then the summary."
        content["application/x-ndjson"] = {
            "schema": {"type": "string", "description": lines},
            LINES: {"anyOf": [*documents, _object(error=PROBLEM)]},
        }


def _lines(documents: Sequence[dict[str, Any]], schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of a response's lines, from the schemas of its documents."""
    for document in documents:
        properties = schemas.get(document.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
        if "results" in properties:  # each line has the model, which a document has once
            yield {"allOf": [properties["results"]["items"], _object(model=_refer(ModelOut))]}
            yield _refer(StreamedSummary)


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _refer(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def _line_schemas() -> dict[str, Any]:
    """The schemas that only lines have; FastAPI does not know them."""
    _, found = models_json_schema([(StreamedSummary, "serialization")], ref_template=_REFERENCE)
    schemas: dict[str, Any] = found["$defs"]
    return schemas


def _declare_problem(status: str, response: dict[str, Any]) -> None:
    content = response.get("content", {})
    as_json = content.get("application/json", {}).get("schema", {})
    if as_json == PROBLEM or (status == "422" and as_json.get("$ref", "").endswith("/HTTPValidationError")):
        response["content"] = {PROBLEM_MEDIA_TYPE: {"schema": PROBLEM}}


@router.get("/openapi.json")
@traits(access=Access.OPEN)
async def openapi(request: Request) -> Response:
    """The OpenAPI document, made once for each application: on a thread, since that takes a quarter of a second."""
    app: FastAPI = request.app
    document = _documents.get(app)
    if document is None:
        document = _documents[app] = asyncio.get_running_loop().run_in_executor(None, _openapi_json, app)
    try:
        content = await asyncio.shield(document)
    except Exception:
        if _documents.get(app) is document:
            del _documents[app]  # else this failure would be the answer for ever
        raise
    return Response(content, media_type=JSONResponse.media_type)


def _openapi_json(app: FastAPI) -> bytes:
    return bytes(JSONResponse(app.openapi()).body)
