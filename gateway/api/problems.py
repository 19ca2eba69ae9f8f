"""Errors as RFC 9457 problem documents, and as the Open Inference Protocol has them where it is spoken."""

import re
import traceback
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
from gateway.errors import GatewayError, InternalError, InvalidParameter, MethodNotAllowed, NotFound, ServiceError
from gateway.near import TOLD_CHARACTERS, near
from gateway.problem import MEDIA_TYPE, members
from gateway.validation import fault

MAX_TOLD = 10
"""Parameters that one answer finds fault with."""
V2 = "/v2"
"""The Open Inference Protocol's paths, whose errors are a sentence in an object."""
PATHS = (
    *("/predict", "/embed", "/stream", "/models", "/limits", "/metrics", "/health/live", "/health/ready"),
    *("/v2", "/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"),
)
"""What a misspelt path is compared with."""
MANAGED = re.compile("/models/[^/]+/(un)?load")
"""What only a gateway with admin keys has."""


def speaks_v2(path: str) -> bool:
    """Whether a path is the Open Inference Protocol's."""
    return path == V2 or path.startswith(f"{V2}/")


def problem(error: GatewayError, scope: Scope) -> Response:
    """An error as the response to a request, with Retry-After where trying again may help."""
    headers = {}
    if isinstance(error, ServiceError) and error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if speaks_v2(scope["path"]):
        return Response(to_json({"error": error.message}), int(error.status), headers, "application/json")
    return Response(
        to_json(members(error, request_context_of(scope).request_id)), int(error.status), headers, MEDIA_TYPE
    )


def note(event: MutableMapping[str, object], error: GatewayError) -> None:
    """Put an error into the log's event of a request: its code and, for the operator alone, the words of its cause."""
    event["code"] = error.code
    if error.__cause__ is not None and (cause := str(error.__cause__)):
        event["cause"] = cause


def invalid_parameter(
    errors: list[dict[str, object]], known: Iterable[str] = tuple(PredictParameters.model_fields)
) -> InvalidParameter:
    """One sentence for what pydantic found, naming each parameter; `known` are the route's."""
    sentences = []
    for error in errors[:MAX_TOLD]:
        loc = error["loc"]
        name = str(loc[-1]) if isinstance(loc, tuple) and loc else "request"
        if error["type"] == "extra_forbidden":
            meant = near(name, known)
            sentences.append(
                f"{name[:TOLD_CHARACTERS]!r} is not a parameter of this request{f'; {meant}' if meant else '.'}"
            )
        else:
            sentences.append(f"{name!r}: {fault(error)}.")
    if len(errors) > MAX_TOLD:
        sentences.append(f"And {len(errors) - MAX_TOLD} more.")
    return InvalidParameter(" ".join(sentences))


@contextmanager
def reading(parameters: type[BaseModel]) -> Iterator[None]:
    """Turn what pydantic finds wrong with a client's parameters into InvalidParameter.

    Any other ValidationError is a bug and stays one: for that, no handler of the application knows pydantic's errors.
    """
    try:
        yield
    except ValidationError as exc:
        errors = [dict(error) for error in exc.errors()]
        raise invalid_parameter(errors, parameters.model_fields) from None


def _nothing_at(request: Request) -> NotFound:
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
        raise exc  # RequestContext knows whether the stream is open, and ends it
    note(request_context_of(request.scope).event, exc)
    clear_frames(exc)
    return problem(exc, request.scope)


def clear_frames(error: BaseException) -> None:
    """Clear the local variables that an error's tracebacks keep alive, such as what had arrived of an upload.

    A client may take as long as it likes to read the answer, and the error lives until then.
    """
    errors, seen = [error], set[int]()
    while errors:
        found = errors.pop()
        if id(found) not in seen:
            seen.add(id(found))
            traceback.clear_frames(found.__traceback__)
            errors += filter(None, (found.__cause__, found.__context__))


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
        error = _nothing_at(request)
    else:
        error = InternalError()
    response = await _gateway_error(request, error)
    response.headers.update(exc.headers or {})
    return response


def add_handlers(app: Starlette) -> None:
    """Answer every known error as its path has them; RequestContext answers the unknown."""
    app.add_exception_handler(GatewayError, _gateway_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_exception)
