"""A backend whose models return their inputs, for tests of tensors that pass through /v2."""

import asyncio

from tritonclient.grpc import service_pb2 as pb

from gateway.deadline import Deadline
from tests.doubles.backend import StubBackend

MODEL = "tokenizer"
INFER = f"/v2/models/{MODEL}/infer"


class EchoBackend(StubBackend):
    """Returns the inputs of each request as outputs; waits for its gate as StubBackend does, and records requests."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[pb.ModelInferRequest] = []
        self.deadlines: list[Deadline] = []

    async def call(self, method: str, model_name: str, request: bytes, deadline: Deadline) -> bytes:
        if method == "ModelReady":
            return pb.ModelReadyResponse(ready=True).SerializeToString()
        if method == "ModelMetadata":
            return pb.ModelMetadataResponse(name=model_name, versions=["1"], platform="python").SerializeToString()
        message = pb.ModelInferRequest.FromString(request)
        self.requests.append(message)
        self.deadlines.append(deadline)
        while not self.gate.is_set():  # noqa: ASYNC110  # tests open it from another thread
            await asyncio.sleep(0.005)
        response = pb.ModelInferResponse(model_name=model_name, model_version="1", id=message.id)
        for tensor in message.inputs:
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.extend(message.raw_input_contents)
        return response.SerializeToString()


def tensor(rows: int = 1, width: int = 2) -> dict[str, object]:
    """An input of int32 [rows, width] in JSON."""
    return {"name": "IDS", "datatype": "INT32", "shape": [rows, width], "data": list(range(rows * width))}
