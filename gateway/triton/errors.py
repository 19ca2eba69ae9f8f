"""The one table from Triton's errors, as gRPC brings them, to the gateway's."""

import grpc
from tritonclient.utils import InferenceServerException

from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    TritonUnreachable,
)

BY_TEXT: tuple[tuple[str, type[GatewayError]], ...] = (
    # Queue-full comes as UNAVAILABLE, like a dead server; only the text tells them apart, and only one may be retried.
    ("Exceeds maximum queue size", Overloaded),
    ("Request timeout expired", DeadlineExceeded),
    # A killed stub process comes as INTERNAL, a model between unload and load as UNAVAILABLE or NOT_FOUND.
    ("is not healthy", ModelUnavailable),
    ("Failed to process the request(s) for model", ModelUnavailable),
    ("is not ready", ModelUnavailable),
    ("has no available versions", ModelUnavailable),
    ("unknown model", ModelNotFound),
    ("is not found", ModelNotFound),
    ("unexpected inference", InferenceFailed),
)
"""What Triton says → what it means, first match first; more telling than its status."""

BY_STATUS: dict[grpc.StatusCode, type[GatewayError]] = {
    grpc.StatusCode.OK: InferenceFailed,
    grpc.StatusCode.CANCELLED: TritonUnreachable,
    grpc.StatusCode.UNKNOWN: InferenceFailed,
    grpc.StatusCode.INVALID_ARGUMENT: InferenceFailed,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.ALREADY_EXISTS: InferenceFailed,
    grpc.StatusCode.PERMISSION_DENIED: InferenceFailed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: InferenceFailed,
    grpc.StatusCode.FAILED_PRECONDITION: InferenceFailed,
    grpc.StatusCode.ABORTED: InferenceFailed,
    grpc.StatusCode.OUT_OF_RANGE: InferenceFailed,
    grpc.StatusCode.UNIMPLEMENTED: InferenceFailed,
    grpc.StatusCode.INTERNAL: InferenceFailed,
    grpc.StatusCode.UNAVAILABLE: TritonUnreachable,
    grpc.StatusCode.DATA_LOSS: InferenceFailed,
    grpc.StatusCode.UNAUTHENTICATED: InferenceFailed,
}
"""gRPC status → what it means where the text says nothing."""

_BY_NAME = {str(status): error for status, error in BY_STATUS.items()}


def translate(exc: InferenceServerException) -> GatewayError:
    """The gateway's error for Triton's; raise it `from exc`, so that the log keeps Triton's own words."""
    text = exc.message() or ""
    for words, error in BY_TEXT:
        if words in text:
            return error()
    return _BY_NAME.get(exc.status() or "", InferenceFailed)()
