"""The interface of one Triton; GrpcEndpoint implements it, and the tests have a fake one."""

from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse, RepositoryIndexResponse

from gateway.inference.backend import Call, InferResult
from gateway.inference.sequence import SequenceScores, SequenceStep
from gateway.triton.codec import CONTRACT, Codec
from gateway.triton.model_config import steps

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
    ) -> InferResult:
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
