"""GET /openapi.json: FastAPI's document, completed: media types of errors and results, bodies that are streams."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from gateway.api.problems import format_of
from gateway.api.route_table import Access, RouteTable, traits
from gateway.errors import PROBLEM_MEDIA_TYPE
from gateway.hooks import ErrorFormat

router = APIRouter(include_in_schema=False)

PROBLEM = {"$ref": "#/components/schemas/Problem"}
RESULT_STATUSES = ("413", "415", "422", "502", "503", "504")
"""Error statuses whose body may also be a list of results: when none of several files was classified."""

_REFERENCE = "#/components/schemas/{model}"
_BODIES: dict[str, Any] = {}
"""The schemas of bodies that are read as streams, by name; FastAPI does not know them."""


def reference(body: type[BaseModel]) -> dict[str, Any]:
    """Register the schema of a body that is read as a stream, and return a reference to it."""
    schema = body.model_json_schema(ref_template=_REFERENCE)
    _BODIES.update(schema.pop("$defs", {}), **{body.__name__: schema})
    return {"$ref": _REFERENCE.format(model=body.__name__)}


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


def complete(app: FastAPI, routes: RouteTable, formats: Sequence[ErrorFormat]) -> None:
    """Declare each response under its media type."""

    def change(schema: dict[str, Any]) -> None:
        for operations in schema["paths"].values():
            for operation in operations.values():
                for status, response in operation["responses"].items():
                    _declare_problem(status, response)
        # FastAPI's schemas for invalid parameters; this service returns problem documents instead.
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
        for route in routes:
            if route.traits.takes_images and format_of(route.path, formats) is None:
                _declare_results(schema["paths"][route.path]["post"]["responses"])
        schema["components"]["schemas"] |= _BODIES

    add(app, change)


def _declare_results(answers: dict[str, Any]) -> None:
    results = answers["200"]["content"]["application/json"]["schema"].get("anyOf", ())
    for status in RESULT_STATUSES if results else ():  # an explanation is of one image, whose error is a problem
        # Generated clients parse each body by the first media type that they know, and as the first schema
        # that fits.
        as_json = {"schema": {"anyOf": [PROBLEM, *results]}}
        answers[status]["content"] = {"application/json": as_json, **answers[status]["content"]}
    lines = "A line for each result as it is ready, then the summary." if results else "The progress, then the result."
    answers["200"]["content"]["application/x-ndjson"] = {"schema": {"type": "string", "description": lines}}


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
    return Response(await asyncio.shield(document), media_type=JSONResponse.media_type)


def _openapi_json(app: FastAPI) -> bytes:
    return bytes(JSONResponse(app.openapi()).body)
