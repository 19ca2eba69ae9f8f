"""The one table that translates Triton's gRPC errors to the gateway's errors."""

import re

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


class StubDied(ModelUnavailable):
    """The process of a Python model has died, and Triton starts no other; `step` is the name of that model."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step


class SequenceLost(InferenceFailed):
    """Triton has no state of this sequence: it was idle too long, or its model was reloaded."""


class LoadNotAllowed(InferenceFailed):
    """Triton loads its models by itself (--model-control-mode=none or poll), and takes no request to load one."""


NOT_LOADED = "The model is not loaded, or not yet; GET /models says why."

BY_TEXT: tuple[tuple[str, type[GatewayError]], ...] = (
    # Queue-full arrives as UNAVAILABLE, like a dead server. Only the text differs, and only one of them may be retried.
    ("Exceeds maximum queue size", Overloaded),
    ("Request timeout expired", DeadlineExceeded),
    # A model between unload and load gives UNAVAILABLE or NOT_FOUND.
    ("is not ready", ModelUnavailable),
    ("has no available versions", ModelUnavailable),
    ("is not available", ModelUnavailable),
    ("must specify the START flag", SequenceLost),
    ("explicit model load / unload is not allowed", LoadNotAllowed),
    ("unknown model", ModelNotFound),
    ("is not found", ModelNotFound),
)
"""A part of Triton's message → the error; the first match wins, and takes precedence over the status."""

BY_STATUS: dict[grpc.StatusCode, type[GatewayError]] = {
    grpc.StatusCode.CANCELLED: TritonUnreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.UNAVAILABLE: TritonUnreachable,
}
"""gRPC status → the error, if no text matches; InferenceFailed for every other status."""

# "Stub process 'preprocessor_0_1' is not healthy.": the model, then two numbers for the instance.
_STUB = re.compile(r"Stub process '(?P<step>.+?)(_\d+_\d+)?' is not healthy")


def translate(exc: InferenceServerException) -> GatewayError:
    """The gateway's error for Triton's; raise it `from exc`, so that the log keeps Triton's message."""
    text = exc.message() or ""
    if stub := _STUB.search(text):
        return StubDied(stub["step"])
    for words, error in BY_TEXT:
        if words in text:
            return error(NOT_LOADED) if error is ModelUnavailable else error()
    return next((error for status, error in BY_STATUS.items() if str(status) == exc.status()), InferenceFailed)()
