"""The Backend that speaks gRPC to Triton."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import numpy as np
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc import InferResult as TritonResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

from gateway.errors import GatewayError, InferenceFailed, ModelNotFound
from gateway.inference.backend import Batch, InferResult, ModelInfo, Prediction, Row
from gateway.inference.probe import probe
from gateway.triton.contract import IMAGE_STATUS, PREDICTION, RAW_IMAGE, RAW_IMAGE_LENGTH, breaches
from gateway.triton.errors import translate

T = TypeVar("T")

MAX_MESSAGE_BYTES = 2**31 - 1
CHANNEL_OPTIONS = [
    # Giving options replaces tritonclient's own, so its message lengths are set here again.
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A Triton that stopped answering is noticed within seconds, also between requests.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The default backoff grows to two minutes, in which a Triton that is back would be left alone.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
METADATA_TIMEOUT_SECONDS = 5.0


class TritonBackend:
    """A Triton server behind a gRPC endpoint `host:port`.

    Make it inside the event loop that uses it, one a process: a gRPC channel does not survive a fork.
    """

    def __init__(self, url: str) -> None:
        self._client = InferenceServerClient(url, channel_args=CHANNEL_OPTIONS)
        self._labels: dict[tuple[str, str], tuple[str, ...]] = {}

    async def infer(
        self, batch: Batch, *, model_name: str, model_version: str, top_k: int, timeout_seconds: float, request_id: str
    ) -> InferResult:
        """Classify a batch by the classification extension; see Backend.infer."""
        inputs = [
            InferInput(RAW_IMAGE, batch.raw_image.shape, "UINT8").set_data_from_numpy(batch.raw_image),
            InferInput(RAW_IMAGE_LENGTH, batch.raw_image_length.shape, "INT32").set_data_from_numpy(
                batch.raw_image_length
            ),
        ]
        outputs = [InferRequestedOutput(PREDICTION, class_count=top_k), InferRequestedOutput(IMAGE_STATUS)]
        result = await self._call(
            self._client.infer(
                model_name,
                inputs,
                model_version=model_version,
                outputs=outputs,
                request_id=request_id,
                timeout=max(1, int(timeout_seconds * 1e6)),  # microseconds: how long it may wait in a queue
                client_timeout=timeout_seconds,
            )
        )
        return _read(result, rows=len(batch.raw_image))

    async def server_ready(self) -> bool:
        """Whether Triton says that it is ready; it may say so while a model's process is dead."""
        try:
            return bool(await self._call(self._client.is_server_ready(client_timeout=METADATA_TIMEOUT_SECONDS)))
        except GatewayError:
            return False

    async def models(self) -> Sequence[ModelInfo]:
        """Every ensemble that keeps the contract, whether it is ready or not."""
        index = await self._call(self._client.get_model_repository_index(client_timeout=METADATA_TIMEOUT_SECONDS))
        entries: dict[str, list[tuple[str, str, str]]] = {}
        for entry in index.models:
            entries.setdefault(entry.name, []).append((entry.version, entry.state, entry.reason))
        found = await asyncio.gather(*(self._describe(name, entries[name]) for name in sorted(entries)))
        return [info for info in found if info is not None]

    async def model(self, name: str) -> ModelInfo:
        """One of `models`; raises ModelNotFound."""
        for info in await self.models():
            if info.name == name:
                return info
        raise ModelNotFound(f"There is no model {name!r} that classifies images; GET /models lists those there are.")

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        await self._client.close()

    async def _describe(self, name: str, entries: list[tuple[str, str, str]]) -> ModelInfo | None:
        ready = tuple(version for version, state, _ in entries if state == "READY" and version)
        if not ready:
            return None
        config = await self._config(name, ready[-1])
        if breaches(config):
            return None
        classes = next(int(output.dims[0]) for output in config.output if output.name == PREDICTION)
        steps = tuple(step.model_name for step in config.ensemble_scheduling.step)
        size = await self._input_size(steps[-1]) if steps else (None, None)
        labels = await self._read_labels(name, ready[-1], classes)
        return ModelInfo(
            name,
            ready,
            ready=True,
            classes=classes,
            labels=labels,
            input_height=size[0],
            input_width=size[1],
            steps=steps,
        )

    async def _config(self, name: str, version: str = "") -> ModelConfig:
        call = self._client.get_model_config(name, version, client_timeout=METADATA_TIMEOUT_SECONDS)
        return (await self._call(call)).config

    async def _input_size(self, name: str) -> tuple[int | None, int | None]:
        """Height and width in pixels of what the last step of an ensemble takes, where it is an image."""
        dims = (await self._config(name)).input[0].dims
        return (int(dims[-2]), int(dims[-1])) if len(dims) == 3 else (None, None)

    async def _read_labels(self, name: str, version: str, classes: int) -> tuple[str, ...]:
        # Triton hands out labels only beside scores, so a small image is asked for every class it has.
        if (name, version) not in self._labels:
            result = await self.infer(
                probe(),
                model_name=name,
                model_version=version,
                top_k=classes,
                timeout_seconds=METADATA_TIMEOUT_SECONDS,
                request_id="labels",
            )
            by_id = {prediction.class_id: prediction.label for prediction in result.rows[0].predictions}
            self._labels[name, version] = tuple(by_id[class_id] for class_id in sorted(by_id))
        return self._labels[name, version]

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except InferenceServerException as exc:
            raise translate(exc) from exc


def _read(result: TritonResult, rows: int) -> InferResult:
    """Read PREDICTION, BYTES [N, k] of "score:class id:label", and IMAGE_STATUS, INT32 [N, 1], 0 for ok."""
    response = result.get_response()
    classified = result.as_numpy(PREDICTION)
    status = result.as_numpy(IMAGE_STATUS)
    if classified is None or status is None or classified.dtype != np.object_ or len(classified) != rows:
        msg = "the model's answer lacks PREDICTION or IMAGE_STATUS, or has another number of rows"
        raise InferenceFailed from ValueError(msg)
    return InferResult(
        model_name=response.model_name,
        model_version=response.model_version,
        rows=tuple(
            Row(decoded=True, predictions=tuple(_read_class(text) for text in texts))
            if code == 0
            else Row(decoded=False, predictions=())
            for code, texts in zip(status.ravel().tolist(), classified.tolist(), strict=True)
        ),
    )


def _read_class(text: bytes) -> Prediction:
    """Read "score:class id:label" of the classification extension; the label may hold colons or be absent."""
    score, class_id, *label = text.decode("utf-8", "replace").split(":", 2)
    return Prediction(label=label[0] if label else class_id, class_id=int(class_id), score=float(score))
