"""One Triton at one address over gRPC: the only calls that the gateway makes to it."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc import InferResult as TritonResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse
from tritonclient.utils import InferenceServerException

from gateway import tracing
from gateway.errors import DeadlineExceeded, InferenceFailed
from gateway.inference.backend import Call, InferResult, Row
from gateway.inference.prediction import Prediction
from gateway.triton.batching import KEEPS_INSTANCES, loses_instances
from gateway.triton.contract import IMAGE_STATUS, PREDICTION, RAW_IMAGE, RAW_IMAGE_LENGTH
from gateway.triton.endpoint import ASK_TIMEOUT_SECONDS, LOAD_TIMEOUT_SECONDS
from gateway.triton.errors import translate
from gateway.turns import Turn

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
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Channels of one process share connections by default: two clients of one server would share their faults.
    ("grpc.use_local_subchannel_pool", 1),
]
INFER = "inference.GRPCInferenceService/ModelInfer"

BEARS_CANCELLATION = (2, 53)
"""The first Triton (24.12) that survives clients which cancel; older ones crash (server issue 7368), 2.51 as well."""
CLASSES_AT_ONCE = 500
"""How many are read before others may have their turn."""
ABANDONED_SECONDS = 30.0
"""How long past its deadline a call may stay with a Triton that must not see it cancelled."""


def version_numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version such as 2.51.0, to be compared."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


class GrpcEndpoint:
    """A Triton's gRPC interface; see gateway.triton.endpoint.

    Make it inside the event loop that uses it, one a process: a gRPC channel does not survive a fork.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.bears_cancellation = False
        """Whether a call may be cancelled; false until `learn_version` knows better."""
        self._keeps_instances = False
        self._client = InferenceServerClient(address, channel_args=CHANNEL_OPTIONS)
        host, _, port = address.rpartition(":")
        self._attributes: dict[str, tracing.Attribute] = {
            "rpc.system.name": "grpc",
            "rpc.method": INFER,
            "server.address": host.strip("[]"),
            "server.port": int(port),
        }
        """Of a span (OpenTelemetry's semantic conventions for RPC)."""
        self._abandoned: set[asyncio.Task[TritonResult]] = set()

    async def infer(self, call: Call, *, class_count: int | None) -> InferResult:
        """Ask for the `class_count` best classes of each image, or for every class's score if None; see Backend.infer.

        The call's selection is left to the caller; here its model is an ensemble of Triton's.

        The call carries the trace of the request that is being served, so that Triton's spans join it.
        """
        batch, turn = call.batch, Turn()
        inputs = [
            InferInput(RAW_IMAGE, batch.raw_image.shape, "UINT8").set_data_from_numpy(batch.raw_image),
            InferInput(RAW_IMAGE_LENGTH, batch.raw_image_length.shape, "INT32").set_data_from_numpy(
                batch.raw_image_length
            ),
        ]
        await turn.pause_if_over()  # the message is another copy of what may be 20 MB
        outputs = [InferRequestedOutput(PREDICTION, class_count=class_count or 0), InferRequestedOutput(IMAGE_STATUS)]
        attributes = {**self._attributes, "gateway.model.name": call.model_name, "gateway.images": len(batch.raw_image)}
        with tracing.call(INFER, attributes) as headers:
            timeout_seconds = call.deadline.left_seconds
            asked = self._client.infer(
                call.model_name,
                inputs,
                model_version=call.model_version,
                outputs=outputs,
                request_id=call.request_id,
                timeout=max(1, int(timeout_seconds * 1e6)),  # microseconds: how long it may wait in a queue
                client_timeout=timeout_seconds + (0 if self.bears_cancellation else ABANDONED_SECONDS),
                headers=headers,
            )
            bears = self.bears_cancellation
            result = await (
                self._ask(asked)
                if bears
                else self._ask_uncancelled(asked, None if call.to_its_end else timeout_seconds)
            )
        return await _read(result, rows=len(batch.raw_image), classified=class_count is not None)

    async def learn_version(self) -> str:
        """Triton's version, such as 2.51.0; from then on it is known what faults this Triton has."""
        metadata = await self._ask(self._client.get_server_metadata(client_timeout=ASK_TIMEOUT_SECONDS))
        numbers = version_numbers(metadata.version)
        self.bears_cancellation = numbers >= BEARS_CANCELLATION
        self._keeps_instances = numbers >= KEEPS_INSTANCES
        return str(metadata.version)

    async def index(self) -> RepositoryIndexResponse:
        """Every model of the repository with its versions, state and reason."""
        return await self._ask(self._client.get_model_repository_index(client_timeout=ASK_TIMEOUT_SECONDS))

    async def config(self, name: str, version: str = "") -> ModelConfig:
        """A model's configuration; raises ModelNotFound or ModelUnavailable."""
        call = self._client.get_model_config(name, version, client_timeout=ASK_TIMEOUT_SECONDS)
        return (await self._ask(call)).config

    def losing(self, models: Iterable[ModelConfig]) -> list[str]:
        """Which of some models will run on ever fewer of their instances under load; see gateway.triton.batching."""
        return [] if self._keeps_instances else [model.name for model in models if loses_instances(model)]

    async def load(self, name: str) -> None:
        """Load a model, or reload it where its files have changed."""
        await self._ask(self._client.load_model(name, client_timeout=LOAD_TIMEOUT_SECONDS))

    async def unload(self, name: str) -> None:
        """Unload a model; what it is working on is finished first."""
        await self._ask(self._client.unload_model(name, client_timeout=LOAD_TIMEOUT_SECONDS))

    async def close(self) -> None:
        """Close the channel; calls in flight are given up."""
        for task in self._abandoned:
            task.cancel()
        await asyncio.gather(*self._abandoned, return_exceptions=True)
        await self._client.close()

    async def _ask(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except InferenceServerException as exc:
            raise translate(exc) from exc

    async def _ask_uncancelled(self, call: Awaitable[TritonResult], timeout_seconds: float | None) -> TritonResult:
        """Wait `timeout_seconds` at most; the call runs on when they have passed or the waiting is cancelled."""
        task = asyncio.ensure_future(self._ask(call))
        self._abandoned.add(task)
        task.add_done_callback(self._forget)
        await asyncio.wait({task}, timeout=timeout_seconds)
        if not task.done():
            raise DeadlineExceeded
        return task.result()

    def _forget(self, task: "asyncio.Task[TritonResult]") -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # seen: nobody may be left to see it


async def _read(result: TritonResult, *, rows: int, classified: bool) -> InferResult:
    """Read IMAGE_STATUS, INT32 [N, 1], 0 for ok, and PREDICTION.

    PREDICTION is FP32 [N, classes], or where it was asked for classified BYTES [N, k] of "score:class id:label".
    """
    response = result.get_response()
    place = next((index for index, output in enumerate(response.outputs) if output.name == PREDICTION), None)
    status = result.as_numpy(IMAGE_STATUS)
    datatype = "BYTES" if classified else "FP32"
    output = None if place is None else response.outputs[place]
    if output is None or status is None or output.datatype != datatype or output.shape[0] != rows:
        raise InferenceFailed from ValueError(
            "the response lacks PREDICTION or IMAGE_STATUS, or has a different number of rows"
        )
    if classified:
        answers = await _read_classes(response.raw_output_contents[place], rows, int(output.shape[1]))
    else:
        answers = [Row(decoded=True, scores=scores) for scores in result.as_numpy(PREDICTION)]
    return InferResult(
        model_name=response.model_name,
        model_version=response.model_version,
        rows=tuple(
            row if code == 0 else Row(decoded=False) for code, row in zip(status.ravel().tolist(), answers, strict=True)
        ),
    )


async def _read_classes(raw: bytes, rows: int, class_count: int) -> list[Row]:
    """Read BYTES [N, k], each text after its length, uint32 little-endian.

    Of a model with 21,000 classes a batch has 168,000, so others have their turn meanwhile.
    """
    turn = Turn()
    answers, position = [], 0
    try:
        for _ in range(rows):
            predictions = []
            for number in range(class_count):
                begin = position + 4
                position = begin + int.from_bytes(raw[position:begin], "little")
                predictions.append(_read_class(raw[begin:position]))
                if number % CLASSES_AT_ONCE == 0:
                    await turn.pause_if_over()
            answers.append(Row(decoded=True, predictions=tuple(predictions)))
    except ValueError as exc:
        raise InferenceFailed from exc
    return answers


def _read_class(text: bytes) -> Prediction:
    """Read "score:class id:label" of the classification extension; the label may hold colons or be absent."""
    score, class_id, *label = text.decode("utf-8", "replace").split(":", 2)
    return Prediction(label=label[0] if label else class_id, class_id=int(class_id), score=float(score))
