"""GET /openapi.json: FastAPI's document, completed: media types of errors and results, error codes, API keys."""

from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from gateway.api.auth import KeyCheck
from gateway.api.problems import format_of
from gateway.api.route_table import Access, RouteTable, traits
from gateway.errors import PROBLEM_MEDIA_TYPE
from gateway.hooks import ErrorFormat

router = APIRouter(include_in_schema=False)

PROBLEM = {"$ref": "#/components/schemas/Problem"}
AS_PROBLEM = {PROBLEM_MEDIA_TYPE: {"schema": PROBLEM}}
RESULT_STATUSES = ("413", "415", "422", "502", "503", "504")
"""Error statuses whose body may also be a list of results: when none of several files was classified."""
LINES = {
    "application/x-ndjson": {
        "schema": {"type": "string", "description": "A line for each result as it is ready, then the summary."}
    }
}
SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_making = Lock()


def complete(
    app: FastAPI,
    routes: RouteTable,
    formats: Sequence[ErrorFormat],
    codes: Sequence[str],
    keys: KeyCheck,
    change: Callable[[dict[str, Any]], None],
) -> None:
    """Complete the application's document; `change` does the same for the plug-ins, in place."""
    plain = app.openapi

    @cache
    def completed() -> dict[str, Any]:
        schema = plain()
        schemas, paths = schema["components"]["schemas"], schema["paths"]
        for operations in paths.values():
            for operation in operations.values():
                for status, response in operation["responses"].items():
                    _declare_problem(status, response)
        # FastAPI's schemas for invalid parameters; this service returns problem documents instead.
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        for route in routes:
            operation = paths.get(route.path, {}).get("post")  # a route may be hidden from the document
            if operation and route.traits.takes_images and format_of(route.path, formats) is None:
                _declare_results(operation["responses"], schemas)
        listed = ", ".join(f"`{each}`" for each in codes)
        schemas["Problem"]["properties"]["code"]["description"] = f"Stable name of the error: {listed}."
        change(schema)
        if keys.authenticators:
            _declare_keys(schema, routes, formats, admin_only=keys.admin_only)
        return schema

    app.openapi = completed  # type: ignore[method-assign]  # FastAPI's documented way


def _declare_results(answers: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Declare results as the body of errors, and lines."""
    content = answers["200"].get("content", {})
    whole = content.get("application/json", {}).get("schema", {})
    documents = whole.get("anyOf", [whole])
    names = [each.get("$ref", "").rpartition("/")[2] for each in documents]
    if not any("results" in schemas.get(name, {}).get("properties", {}) for name in names):
        return  # a route of one image reports its error as a problem
    for status in RESULT_STATUSES:
        # Generated clients parse each body by the first media type that they know, and as the first schema
        # that fits.
        as_json = {"schema": {"anyOf": [PROBLEM, *documents]}}
        answers[status]["content"] = {"application/json": as_json, **answers[status]["content"]}
    content.update(LINES)


def _declare_problem(status: str, response: dict[str, Any]) -> None:
    content = response.get("content", {})
    as_json = content.get("application/json", {}).get("schema", {})
    if as_json == PROBLEM or (status == "422" and as_json.get("$ref", "").endswith("/HTTPValidationError")):
        response["content"] = AS_PROBLEM


def _declare_keys(
    schema: dict[str, Any], routes: RouteTable, formats: Sequence[ErrorFormat], *, admin_only: bool
) -> None:
    """Declare which operations need a key, and how to send it."""
    schema["components"]["securitySchemes"] = SCHEMES
    access = {route.path: route.traits.access for route in routes}
    for path, operations in schema["paths"].items():
        error_format, content = format_of(path, formats), AS_PROBLEM
        if error_format is not None:
            reference = f"#/components/schemas/{error_format.schema.__name__}"
            content = {"application/json": {"schema": {"$ref": reference}}}
        for operation in operations.values():
            if access[path] is Access.ADMIN or (access[path] is Access.KEY and not admin_only):
                operation["security"] = [{name: []} for name in SCHEMES]
                operation["responses"]["401"] = {"description": "The API key is missing.", "content": content}
            if access[path] is Access.ADMIN:
                operation["responses"]["403"] = {
                    "description": "The API key is valid but is not an admin key.",
                    "content": AS_PROBLEM,
                }


@router.get("/openapi.json")
@traits(access=Access.OPEN)
async def openapi(request: Request) -> Response:
    """The OpenAPI document, on a thread: making it takes a quarter of a second."""
    return Response(await run_in_threadpool(_openapi_json, request.app), media_type=JSONResponse.media_type)


def _openapi_json(app: FastAPI) -> bytes:
    with _making:
        return to_json(app.openapi())
