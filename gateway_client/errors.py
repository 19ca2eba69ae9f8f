"""Errors: one class for each scope, and the attribute `code`, as in the table of docs/reference/errors.md.

GatewayError
├── ImageError      one image failed; the others keep their results
├── RequestError    the whole request cannot be served as it was sent
└── ServiceError    the service cannot serve the request now, is not there, or is no gateway
"""

from collections.abc import Mapping
from typing import Any

SERVICE_CODES = {
    "overloaded": True,
    "rate_limited": True,
    "model_unavailable": True,
    "triton_unreachable": True,
    "deadline_exceeded": True,
    "contract_broken": False,
    "inference_failed": False,
    "load_failed": False,
    "internal_error": False,
    # Codes of the client; `http_` with a status is the refusal of a proxy.
    "connection_lost": True,
    "unreachable": False,
    "unexpected_answer": False,
}
"""The codes of ServiceErrors, and whether the same image may succeed when it is sent again later."""


def is_retryable(code: str) -> bool:
    """Whether an image with this error may succeed when it is sent again later."""
    return SERVICE_CODES.get(code, code.startswith("http_"))


class GatewayError(Exception):
    """An error: a stable code, an HTTP status if there is one, and a message with advice.

    `details` are the other members of the problem document (RFC 9457), such as the limit that was exceeded and its
    value; `retry_after_seconds` is the value of the Retry-After header.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.details = dict(details or {})

    @property
    def retryable(self) -> bool:
        """Whether the same image may succeed when it is sent again later."""
        return is_retryable(self.code)


class ImageError(GatewayError):
    """One image failed; the other images keep their results."""


class RequestError(GatewayError):
    """The whole request cannot be served as it was sent."""


class ServiceError(GatewayError):
    """The service cannot serve the request now, is not there, or is no gateway."""


def unexpected_answer(message: str, *, status: int | None = None) -> ServiceError:
    """The error for a server that does not answer like a gateway."""
    return ServiceError(message, code="unexpected_answer", status=status)


def connection_lost(message: str) -> ServiceError:
    """The error for a connection that broke before a response was ready."""
    return ServiceError(message, code="connection_lost")
