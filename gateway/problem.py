"""An error as an RFC 9457 problem document."""

from gateway.errors import GatewayError

MEDIA_TYPE = "application/problem+json"


def members(error: GatewayError, request_id: str) -> dict[str, object]:
    """The members of the problem document: those of RFC 9457, the code, the request id, and the error's details."""
    return {
        "type": "about:blank",
        "title": error.summary,
        "status": int(error.status),
        "code": error.code,
        "detail": error.message,
        "request_id": request_id,
        **error.details,
    }
