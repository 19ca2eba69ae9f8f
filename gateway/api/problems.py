"""Error responses: RFC 9457 problem documents, and the Open Inference Protocol's errors under /v2."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from gateway.api.parameters import invalid_parameter
from gateway.api.request_context import CONTEXT, RequestContext
from gateway.errors import (
    PROBLEM_MEDIA_TYPE,
    AlreadyLogged,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    ServiceError,
    Unauthorized,
    clear_frames,
    problem_document,
)

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
    context: RequestContext = scope["state"][CONTEXT]
    headers = {}
    if isinstance(error, ServiceError) and error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = error.challenge
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allowed
    error_format = format_of(scope["path"], context.runtime.error_formats)
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
    context: RequestContext = scope["state"][CONTEXT]
    if isinstance(exc, GatewayError) and not started:
        context.note(exc)
        clear_frames(exc)
        return problem(exc, scope)
    plugin = context.runtime.plugins.blamed(exc)
    log.exception("unexpected_error", **({"plugin": plugin} if plugin else {}))
    error = InternalError()
    context.note(error)
    if started:
        raise AlreadyLogged from exc
    return problem(error, scope)


async def handle_validation_error(_: Request, exc: Exception) -> Response:
    """Raise a parameter's error that FastAPI has found as InvalidParameter, which the middleware Errors answers."""
    assert isinstance(exc, RequestValidationError)
    raise invalid_parameter([dict(error) for error in exc.errors()], ()) from None
