"""Errors as gRPC statuses with details: google.rpc.ErrorInfo, and RetryInfo where a retry may help.

The model of errors: https://google.aip.dev/193. The details travel in the trailing metadata grpc-status-details-bin.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus

import grpc
import structlog
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from gateway import metrics
from gateway.errors import GatewayError, InternalError, ServiceError, problem_document
from gateway.plugins.oip.grpc_api.asgi import Response

log = structlog.get_logger("gateway")

DOMAIN = "triton-image-gateway"
"""The domain of ErrorInfo: its reasons are the gateway's error codes in upper case."""
ROUTE = "grpc"
"""The route, in the metric of requests, of calls that are refused before they become a request."""
DETAILS = "grpc-status-details-bin"
HEADERS = (b"x-request-id", b"server-timing", b"ratelimit", b"ratelimit-policy")
"""Headers of a response that are trailing metadata of its call."""
NOT_DETAILS = frozenset({"type", "title", "status", "code", "detail"})
"""Members of a problem document that are not in ErrorInfo's metadata."""

CODES: dict[int, grpc.StatusCode] = {
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.REQUEST_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    HTTPStatus.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""The status of an error; any other 4xx is INVALID_ARGUMENT, any other 5xx INTERNAL."""

Metadata = tuple[tuple[str, str | bytes], ...]


class Failure(Exception):
    """The end of a call: its status, a public message, and its trailing metadata; `reason` is the gateway's code."""

    def __init__(self, code: grpc.StatusCode, message: str, reason: str, trailing: Metadata) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.trailing = trailing


def failure_of(error: GatewayError, code: grpc.StatusCode | None = None) -> Failure:
    """The failure for an error that did not pass through the application; by default with the code of its status."""
    seconds = error.retry_after_seconds if isinstance(error, ServiceError) else None
    return _failure(int(error.status), problem_document(error, ""), seconds, (), code)


def failed(error: Exception) -> Failure:
    """The failure for an error; one that is not the application's own is counted and logged here."""
    if isinstance(error, Failure):
        return error
    if not isinstance(error, GatewayError):
        log.error("unexpected_error", exc_info=error)
        error = InternalError()
    metrics.series(metrics.REQUESTS, ROUTE, str(int(error.status)), error.code).inc()
    log.warning("grpc_call_failed", status=int(error.status), code=error.code)
    return failure_of(error)


def failure_in(response: Response) -> Failure:
    """The failure for an error response of the application."""
    try:
        document = json.loads(response.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = problem_document(InternalError(), "")
    retry_after = response.headers.get(b"retry-after", b"").decode()
    seconds = int(retry_after) if retry_after.isdigit() else None
    return _failure(response.status, document, seconds, trailing_of(response))


def trailing_of(response: Response) -> Metadata:
    """The trailing metadata of a call: the request id and times, and the rate of the key."""
    return tuple((name.decode(), response.headers[name].decode()) for name in HEADERS if name in response.headers)


def _failure(
    status: int,
    document: Mapping[str, object],
    retry_after_seconds: int | None,
    trailing: Metadata,
    code: grpc.StatusCode | None = None,
) -> Failure:
    is_clients = status < HTTPStatus.INTERNAL_SERVER_ERROR
    code = code or CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT if is_clients else grpc.StatusCode.INTERNAL)
    message = str(document.get("detail") or document.get("error") or InternalError.summary)
    reason = str(document.get("code") or "")
    rich = Status(code=code.value[0], message=message)
    metadata = {name: str(value) for name, value in document.items() if name not in NOT_DETAILS and value}
    rich.details.add().Pack(ErrorInfo(reason=reason.upper(), domain=DOMAIN, metadata=metadata))
    if retry_after_seconds is not None:
        retry = RetryInfo()
        retry.retry_delay.FromSeconds(retry_after_seconds)
        rich.details.add().Pack(retry)
    return Failure(code, message, reason, (*trailing, (DETAILS, rich.SerializeToString())))
