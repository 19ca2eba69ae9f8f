"""What the gateway asks of one Triton: the seam at which gateway.triton.fake_endpoint stands in for it."""

from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.inference.backend import Call, InferResult
from gateway.inference.sequence import SequenceScores, SequenceStep
from gateway.triton.model_config import steps

METADATA_TIMEOUT_SECONDS = 5.0
"""Longest time for what Triton answers without a model."""
LOAD_TIMEOUT_SECONDS = 120.0


class TritonEndpoint(Protocol):
    """One Triton at one address; every method raises errors of gateway.errors only."""

    address: str
    supports_cancellation: bool
    """Whether a call may be cancelled; false until `fetch_server_metadata` knows better."""

    async def infer(self, call: Call, *, class_count: int | None, vectors: bool = False) -> InferResult:
        """Ask for the `class_count` best classes of each image, or for every class's score if None; see Backend.infer.

        And for their `vectors`, which the model must have, whatever the call says of them.

        The call's selection is left to the caller; here its model is an ensemble of Triton's.
        """
        ...

    async def infer_sequence(self, step: SequenceStep) -> SequenceScores:
        """Take a sequence one step on; raises SequenceLost where Triton has no state of it."""
        ...

    async def fetch_server_metadata(self) -> str:
        """Triton's version, such as 2.51.0; from then on it is known what faults this Triton has."""
        ...

    async def index(self) -> RepositoryIndexResponse:
        """Every model of the repository with its versions, state and reason."""
        ...

    async def config(self, name: str, version: str = "") -> ModelConfig:
        """A model's configuration; raises ModelNotFound or ModelUnavailable."""
        ...

    async def load(self, name: str) -> None:
        """Load a model, or reload it where its files have changed."""
        ...

    async def force_reload(self, name: str) -> None:
        """Load a model anew though its files have not changed; its old instances answer until the new ones can."""
        ...

    async def unload(self, name: str) -> None:
        """Unload a model; what it is working on is finished first."""
        ...

    async def close(self) -> None:
        """Close the connection; calls in flight are given up."""
        ...


async def step_configs(endpoint: TritonEndpoint, config: ModelConfig) -> list[ModelConfig]:
    """The configurations of an ensemble's steps in order, or of the model itself where it is none."""
    return [await endpoint.config(name) for name in steps(config)] or [config]
