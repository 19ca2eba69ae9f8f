"""A blocking client of Triton for commands; it can also call the single steps of an ensemble."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from gateway.errors import UserError
from gateway.triton.client import channel_options, pause_seconds
from gateway.triton.contract import (
    DAMAGED,
    FEATURES,
    IMAGE_STATUS,
    PREDICTION,
    PREPROCESSED_IMAGE,
    RAW_IMAGE,
    RAW_IMAGE_LENGTH,
)

TIMEOUT_SECONDS = 120.0
LOAD_TIMEOUT_SECONDS = 600.0
NOT_CONNECTED = ("failed to connect to all addresses", "DNS resolution failed")
"""Parts of gRPC's own messages; Triton may answer UNAVAILABLE as well."""


def pad(payloads: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Zero-pad encoded images to one length.

    Returns RAW_IMAGE uint8 [N, max length] and RAW_IMAGE_LENGTH int32 [N, 1]; N is at least 1.
    """
    lengths = np.fromiter(map(len, payloads), dtype=np.int32, count=len(payloads))
    raw_image = np.zeros((len(payloads), int(lengths.max())), dtype=np.uint8)
    for row, payload in zip(raw_image, payloads, strict=True):
        row[: len(payload)] = np.frombuffer(payload, dtype=np.uint8)
    return raw_image, lengths.reshape(-1, 1)


class TritonRefused(UserError):
    """Triton refused a call; the message has its reason."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The outputs for N images: `status` int32 [N], 0 for a decoded image; `values` [N, …], mostly fp32.

    `embeddings` are the embeddings, fp32 [N, size], if the model has them.
    """

    status: NDArray[np.int32]
    values: NDArray[Any]
    embeddings: NDArray[np.float32] | None = None


class BlockingTriton:
    """A Triton at host:port; every method raises TritonRefused. Not thread-safe: each thread needs its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client = InferenceServerClient(address, channel_args=channel_options(address))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> "BlockingTriton":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def predict(self, ensemble: str, images: Sequence[bytes]) -> Answers:
        """Probabilities fp32 [N, classes] of encoded images, and their embeddings, if the model has them."""
        return self._ask_images(ensemble, images, PREDICTION)

    def preprocess(self, preprocessor: str, images: Sequence[bytes]) -> Answers:
        """The input of the classifier for encoded images: [N, 3, height, width], fp32, or uint8 for pixels."""
        return self._ask_images(preprocessor, images, PREPROCESSED_IMAGE)

    def infer_zeros(self, model: str, config: ModelConfig, batch_size: int) -> None:
        """Have a model compute one batch of zeros, its only input; the answer is dropped."""
        (tensor,) = config.input
        datatype = DataType.Name(tensor.data_type).removeprefix("TYPE_")
        shape = [batch_size, *(max(1, int(dim)) for dim in tensor.dims)]
        given = InferInput(tensor.name, shape, datatype)
        given.set_data_from_numpy(np.zeros(shape, triton_to_np_dtype(datatype)))
        with self._translated():
            self._client.infer(model, [given], client_timeout=TIMEOUT_SECONDS)

    def spent(self, model: str, batch_size: int) -> tuple[int, int]:
        """The executions of a model with this batch size so far, and their nanoseconds with all copies."""
        with self._translated():
            (*_, found) = self._client.get_inference_statistics(model, client_timeout=TIMEOUT_SECONDS).model_stats
        for each in found.batch_stats:
            if each.batch_size == batch_size:
                parts = (each.compute_input, each.compute_infer, each.compute_output)
                return each.compute_infer.count, sum(part.ns for part in parts)
        return 0, 0

    def config(self, model: str) -> ModelConfig:
        """A model's configuration."""
        with self._translated():
            return self._client.get_model_config(model, client_timeout=TIMEOUT_SECONDS).config

    def load(self, *models: str) -> None:
        """Load models one after another, with pauses for calls; those whose files have changed are reloaded."""
        pause = 0.0
        with self._translated():
            for model in models:
                time.sleep(pause)
                began = time.monotonic()
                self._client.load_model(model, client_timeout=LOAD_TIMEOUT_SECONDS)
                pause = pause_seconds(time.monotonic() - began)

    def unload(self, *models: str) -> None:
        """Unload models one after another."""
        with self._translated():
            for model in models:
                self._client.unload_model(model, client_timeout=LOAD_TIMEOUT_SECONDS)

    def _ask_images(self, model: str, images: Sequence[bytes], output: str) -> Answers:
        raw_image, length = pad(images)
        inputs = [
            InferInput(RAW_IMAGE, raw_image.shape, "UINT8").set_data_from_numpy(raw_image),
            InferInput(RAW_IMAGE_LENGTH, length.shape, "INT32").set_data_from_numpy(length),
        ]
        with self._translated():
            result = self._client.infer(model, inputs, client_timeout=TIMEOUT_SECONDS)
        status = result.as_numpy(IMAGE_STATUS)[:, 0]
        return Answers(np.where(status == DAMAGED, 0, status), result.as_numpy(output), result.as_numpy(FEATURES))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except InferenceServerException as exc:
            if any(sign in exc.message() for sign in NOT_CONNECTED):
                raise TritonRefused(
                    f"no Triton answers at {self.address}: give the gRPC address of one that runs, HOST:PORT"
                ) from exc
            raise TritonRefused(f"Triton at {self.address} says: {exc.message()}") from exc
