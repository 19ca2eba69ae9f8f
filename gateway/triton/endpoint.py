"""The interface of one Triton, and the one table of its errors.

GrpcEndpoint in gateway.triton.client implements it, and the tests have a fake one.
"""

import re
from collections.abc import Sequence
from typing import Protocol

import grpc
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse, RepositoryIndexResponse
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
from gateway.inference.backend import Call, Row
from gateway.inference.sequence import SequenceScores, SequenceStep
from gateway.triton.codec import CONTRACT, Codec
from gateway.triton.contract import steps


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


SHORT_SECONDS = 1.0
"""A load that took less started no processes."""
SHARE = 0.25
LONGEST_SECONDS = 5.0


def pause_seconds(load_seconds: float) -> float:
    """How long to load nothing after a load that took `load_seconds`: a quarter of it, at most LONGEST_SECONDS."""
    return 0.0 if load_seconds < SHORT_SECONDS else min(LONGEST_SECONDS, SHARE * load_seconds)


METADATA_TIMEOUT_SECONDS = 5.0
"""Timeout of calls that run no model, such as metadata, index and configuration."""
LOAD_TIMEOUT_SECONDS = 120.0
ALL_CLASSES = 2**31 - 1
"""A class count above that of any model: Triton returns all classes."""


class TritonEndpoint(Protocol):
    """One Triton at one address; every method raises errors of gateway.errors only."""

    address: str
    supports_cancellation: bool
    """Whether a call may be cancelled; false until `fetch_server_metadata` has read the version."""

    async def infer(
        self, call: Call, *, class_count: int | None, embeddings: bool = False, codec: Codec = CONTRACT
    ) -> Sequence[Row]:
        """Request the `class_count` best classes of each image, or all scores if None; see Backend.infer.

        With `embeddings` also those, which the model must have; `call.embeddings` is ignored. The caller applies the
        call's selection; `call.model_name` is the name of a model in Triton, and `codec` is its codec.
        """
        ...

    async def infer_sequence(self, step: SequenceStep) -> SequenceScores:
        """Run one step of a sequence; raises SequenceLost if Triton has no state of it."""
        ...

    async def call(self, method: str, request: bytes, timeout_seconds: float) -> bytes:
        """One call of GRPCInferenceService, with serialised messages; see Backend.call."""
        ...

    async def fetch_server_metadata(self) -> str:
        """Triton's version, such as 2.51.0; it also sets `supports_cancellation`."""
        ...

    async def index(self) -> RepositoryIndexResponse:
        """Every model of the repository with its versions, state and reason."""
        ...

    async def config(self, name: str, version: str = "") -> ModelConfig:
        """A model's configuration; raises ModelNotFound or ModelUnavailable."""
        ...

    async def statistics(self, name: str) -> ModelStatisticsResponse:
        """The statistics of a model's versions since they were loaded; raises ModelUnavailable if it is not loaded."""
        ...

    async def load(self, name: str) -> None:
        """Load a model, or reload it if its files have changed."""
        ...

    async def force_reload(self, name: str) -> None:
        """Reload a model whose files have not changed; its old instances answer until the new ones are loaded."""
        ...

    async def unload(self, name: str) -> None:
        """Unload a model; its requests in progress are finished first."""
        ...

    async def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        ...


async def step_configs(endpoint: TritonEndpoint, config: ModelConfig) -> list[ModelConfig]:
    """The configurations of an ensemble's steps in order; of a model that is no ensemble, its own."""
    return [await endpoint.config(name) for name in steps(config)] or [config]
