"""Error responses: RFC 9457 problem documents, and the Open Inference Protocol's errors under /v2."""

import re
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from gateway.api.parameters import PredictParameters
from gateway.api.request_context import request_context_of
from gateway.api.vectors import PATH as EMBED
from gateway.api.vectors import EmbeddingParameters
from gateway.errors import (
    GatewayError,
    InternalError,
    InvalidParameter,
    MethodNotAllowed,
    NotFound,
    ServiceError,
    clear_frames,
)
from gateway.near import TOLD_CHARACTERS, near
from gateway.problem import MEDIA_TYPE, members
from gateway.validation import fault

MAX_REPORTED = 10
"""Invalid parameters that one response reports."""
V2 = "/v2"
"""Prefix of the Open Inference Protocol's paths; their errors are an object with one message."""
PATHS = (
    *("/predict", "/embed", "/stream", "/models", "/limits", "/metrics", "/health/live", "/health/ready"),
    *("/v2", "/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"),
)
"""Paths that are suggested for a misspelt one."""
MANAGED = re.compile("/models/[^/]+/(un)?load")
"""Paths that exist only with admin keys."""


def is_v2_path(path: str) -> bool:
    """Whether a path belongs to the Open Inference Protocol."""
    return path == V2 or path.startswith(f"{V2}/")


def problem(error: GatewayError, scope: Scope) -> Response:
    """The response for an error, with Retry-After if a retry may help."""
    headers = {}
    if isinstance(error, ServiceError) and error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if is_v2_path(scope["path"]):
        return Response(to_json({"error": error.message}), int(error.status), headers, "application/json")
    return Response(
        to_json(members(error, request_context_of(scope).request_id)), int(error.status), headers, MEDIA_TYPE
    )


def note(event: MutableMapping[str, object], error: GatewayError) -> None:
    """Add an error to the log event of a request: its code and, only for operators, the message of its cause."""
    event["code"] = error.code
    if error.__cause__ is not None and (cause := str(error.__cause__)):
        event["cause"] = cause


def invalid_parameter(
    errors: list[dict[str, object]], known: Iterable[str] = tuple(PredictParameters.model_fields)
) -> InvalidParameter:
    """Convert pydantic's errors to one message that names each parameter; `known` are the parameters of the route."""
    sentences = []
    for error in errors[:MAX_REPORTED]:
        loc = error["loc"]
        name = str(loc[-1]) if isinstance(loc, tuple) and loc else "request"
        if error["type"] == "extra_forbidden":
            meant = near(name, known)
            sentences.append(
                f"{name[:TOLD_CHARACTERS]!r} is not a parameter of this request{f'; {meant}' if meant else '.'}"
            )
        else:
            sentences.append(f"{name!r}: {fault(error)}.")
    if len(errors) > MAX_REPORTED:
        sentences.append(f"And {len(errors) - MAX_REPORTED} more.")
    return InvalidParameter(" ".join(sentences))


@contextmanager
def reading(parameters: type[BaseModel]) -> Iterator[None]:
    """Convert pydantic's ValidationError for a client's parameters to InvalidParameter.

    Any other ValidationError is a bug; therefore the application has no exception handler for ValidationError.
    """
    try:
        yield
    except ValidationError as exc:
        errors = [dict(error) for error in exc.errors()]
        raise invalid_parameter(errors, parameters.model_fields) from None


def _not_found(request: Request) -> NotFound:
    path = request.scope["path"][:TOLD_CHARACTERS]
    if MANAGED.fullmatch(request.scope["path"]):
        return NotFound(
            f"There is nothing at {path}: models are loaded and unloaded over HTTP only where "
            "GATEWAY_ADMIN_KEYS_FILE is set."
        )
    meant = near(path, PATHS, most=2)
    return NotFound(f"There is nothing at {path}; {meant + ' See' if meant else 'see'} /docs.")


async def _gateway_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, GatewayError)
    if request.scope["type"] == "websocket":
        raise exc  # RequestContextMiddleware knows whether the stream is open, and closes it
    note(request_context_of(request.scope).event, exc)
    clear_frames(exc)
    return problem(exc, request.scope)


async def _validation_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    known = EmbeddingParameters if request.scope["path"] == EMBED else PredictParameters
    return await _gateway_error(request, invalid_parameter([dict(error) for error in exc.errors()], known.model_fields))


async def _http_exception(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    error: GatewayError
    if exc.status_code == MethodNotAllowed.status:
        path = request.scope["path"][:TOLD_CHARACTERS]
        error = MethodNotAllowed(f"{request.method[:TOLD_CHARACTERS]} is not allowed on {path}; see /docs.")
    elif exc.status_code == NotFound.status:
        error = _not_found(request)
    else:
        error = InternalError()
    response = await _gateway_error(request, error)
    response.headers.update(exc.headers or {})
    return response


def add_handlers(app: Starlette) -> None:
    """Register the handlers for known errors; RequestContextMiddleware handles all others."""
    app.add_exception_handler(GatewayError, _gateway_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_exception)
