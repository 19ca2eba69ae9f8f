"""Errors that arise on the client's side."""

from gateway_client.errors import GatewayError, ImageError


class UnreadableFile(ImageError):
    """The client cannot read the file; it was not sent."""

    status = 422
    code = "unreadable_file"


class ConnectionLost(GatewayError):
    """The connection broke before a response was ready."""

    status = 502
    code = "connection_lost"
    retryable = True


class Unreachable(GatewayError):
    """There is no gateway at the URL, or it was unreachable for longer than `retry_seconds`."""

    status = 502
    code = "unreachable"


class UnexpectedAnswer(GatewayError):
    """The server that answered is not this gateway."""

    status = 502
    code = "unexpected_answer"
