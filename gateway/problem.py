"""An error as an RFC 9457 problem document."""

from gateway.errors import GatewayError

MEDIA_TYPE = "application/problem+json"


def members(error: GatewayError, request_id: str) -> dict[str, object]:
    """The members of an error's problem document: RFC 9457's, its code, the request id, and its details."""
    return {
        "type": "about:blank",
        "title": error.summary,
        "status": int(error.status),
        "code": error.code,
        "detail": error.message,
        "request_id": request_id,
        **error.details,
    }
