"""Completes FastAPI's OpenAPI document: media types of errors and results, and bodies that are read as streams."""

from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from gateway.api.problems import is_v2_path
from gateway.api.route_table import RouteTable
from gateway.errors import PROBLEM_MEDIA_TYPE

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


def document_answers(app: FastAPI, routes: RouteTable) -> None:
    """Declare each response under its media type."""
    plain = app.openapi

    def with_answers() -> dict[str, Any]:
        schema = plain()
        for operations in schema["paths"].values():
            for operation in operations.values():
                for status, response in operation["responses"].items():
                    _declare_problem(status, response)
        # FastAPI's schemas for invalid parameters; this service returns problem documents instead.
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
        for route in routes:
            if route.traits.takes_images and not is_v2_path(route.path):
                _declare_results(schema["paths"][route.path]["post"]["responses"])
        schema["components"]["schemas"] |= _BODIES
        return schema

    app.openapi = with_answers  # type: ignore[method-assign]  # FastAPI's documented way


def document_images(app: FastAPI, routes: RouteTable, image: dict[str, Any]) -> None:
    """Declare another schema of an image in JSON."""
    plain = app.openapi

    def with_images() -> dict[str, Any]:
        schema = plain()
        for route in routes:
            if route.traits.takes_images and not is_v2_path(route.path):
                operation = schema["paths"][route.path]["post"]
                operation["requestBody"] = body = deepcopy(operation["requestBody"])  # all applications share it
                body["content"]["application/json"]["schema"]["properties"]["images"]["items"] = image
        return schema

    app.openapi = with_images  # type: ignore[method-assign]  # FastAPI's documented way


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
