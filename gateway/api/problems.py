"""Error responses: RFC 9457 problem documents, and the Open Inference Protocol's errors under /v2."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from gateway.api.parameters import invalid_parameter
from gateway.api.request_context import request_context, request_context_of
from gateway.api.route_table import Access, RouteTable
from gateway.errors import (
    PROBLEM_MEDIA_TYPE,
    AlreadyLogged,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    NotFound,
    ServiceError,
    Unauthorized,
    clear_frames,
    problem_document,
)
from gateway.values.validation import NAME_CHARACTERS

if TYPE_CHECKING:
    from gateway.hooks import ErrorFormat

log = structlog.get_logger("gateway")


def format_of(path: str, formats: "Sequence[ErrorFormat]") -> "ErrorFormat | None":
    """The format of the errors of a path; None for problem documents."""
    return next((each for each in formats if each.applies(path)), None)


def problem(error: GatewayError, scope: Scope) -> Response:
    """The response for an error, with Retry-After if a retry may help.

    Below a path with another format, a client gets a problem document if its header Accept names that type.
    """
    context = request_context_of(scope)
    headers = {}
    if isinstance(error, ServiceError) and error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = error.challenge
    error_format = format_of(scope["path"], context.shared.get("error_formats", ()))
    if error_format is not None and not _accepts_problem(scope):
        return Response(error_format.body(error), int(error.status), headers, "application/json")
    return Response(
        to_json(problem_document(error, context.request_id)),
        int(error.status),
        headers,
        PROBLEM_MEDIA_TYPE,
    )


def _accepts_problem(scope: Scope) -> bool:
    return any(name == b"accept" and PROBLEM_MEDIA_TYPE.encode() in value for name, value in scope["headers"])


def report(exc: Exception, scope: Scope, *, started: bool) -> Response:
    """The response for an exception; raises AlreadyLogged if a part of another response is already sent.

    Then only closing the connection can signal the error.
    """
    context = request_context_of(scope)
    if isinstance(exc, GatewayError) and not started:
        context.note(exc)
        clear_frames(exc)
        return problem(exc, scope)
    plugin = context.shared["plugins"].blamed(exc) if "plugins" in context.shared else ""
    log.exception("unexpected_error", **({"plugin": plugin} if plugin else {}))
    error = InternalError()
    context.note(error)
    if started:
        raise AlreadyLogged from exc
    return problem(error, scope)


def add_handlers(app: Starlette, routes: RouteTable) -> None:
    """Convert FastAPI's and Starlette's own errors to GatewayErrors, which the middleware Errors handles."""
    managed = [route.pattern for route in routes if route.traits.access is Access.ADMIN]

    def not_found(path: str) -> NotFound:
        shown = path[:NAME_CHARACTERS]
        if any(pattern.match(path) for pattern in managed):
            return NotFound(
                f"There is nothing at {shown}: models are loaded and unloaded over HTTP only where "
                "GATEWAY_ADMIN_KEYS_FILE is set."
            )
        return NotFound(f"There is nothing at {shown}; see /docs.")

    async def handle_validation_error(_: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        raise invalid_parameter([dict(error) for error in exc.errors()], ()) from None

    async def handle_http_exception(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        error: GatewayError
        path = request.scope["path"]
        if exc.status_code == MethodNotAllowed.status:
            method = request.method[:NAME_CHARACTERS]
            allowed = (exc.headers or {}).get("Allow", "")
            instead = f": send {allowed.replace(', ', ' or ')}" if allowed else ""
            error = MethodNotAllowed(f"{method} is not allowed on {path[:NAME_CHARACTERS]}{instead}; see /docs.")
        elif exc.status_code == NotFound.status:
            error = not_found(path)
        else:
            error = InternalError()
        request_context(request).note(error)
        response = problem(error, request.scope)
        response.headers.update(exc.headers or {})
        return response

    app.add_exception_handler(RequestValidationError, handle_validation_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
