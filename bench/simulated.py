"""Simulated Tritons: gRPC servers in a separate process, with instances, service times and queues.

    python -m bench.simulated 4 --instances 2 --seconds 0.04 --slow 5

The first line of stdout has the ports. A line "stop INDEX" on stdin stops a server, "start INDEX" starts it again.
"""

# ruff: noqa: ARG002, N802  # the methods of the protocol

import argparse
import asyncio
import json
import signal
import sys

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from gateway.triton.contract import PREPROCESSOR
from tests.doubles.triton import FakeTriton

LABELS = ("cat", "dog", "bird", "fish", "horse")
OPTIONS = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]

RESIZE = {"resize_size": "224,224", "crop_size": "224", "interpolation": "bicubic", "resize_library": "pillow"}
"""Parameters of the preprocessor, so that the gateway shrinks large images as it does for a real one."""
_TEXTS = [b"%.6f:%d:%b" % (0.5**number, number, label.encode()) for number, label in enumerate(LABELS, 1)]
CLASSES = [len(text).to_bytes(4, "little") + text for text in _TEXTS]
"""The result for every image in the classification extension's form: each text after its length."""


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """One Triton: `instances` that take `seconds` for a call each; with 0 seconds each call is answered at once."""

    def __init__(self, instances: int, seconds: float) -> None:
        self._fake = FakeTriton(instances=instances)
        self._seconds = seconds
        self._free = asyncio.Semaphore(instances)

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: object) -> pb.ServerMetadataResponse:
        """A version without known faults."""
        return pb.ServerMetadataResponse(name="triton", version="99.0.0")

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: object) -> pb.RepositoryIndexResponse:
        """One ensemble with its steps."""
        index = pb.RepositoryIndexResponse()
        for name in ("ensemble_model", "net", "preprocessor"):
            index.models.add(name=name, version="1", state="READY")
        return index

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: object) -> pb.ModelConfigResponse:
        """The configuration, as from config.pbtxt."""
        config = self._fake.config(request.name)
        if request.name == PREPROCESSOR:
            for name, value in RESIZE.items():
                config.parameters[name].string_value = value
        return pb.ModelConfigResponse(config=config)

    async def ModelInfer(self, request: pb.ModelInferRequest, context: object) -> pb.ModelInferResponse:
        """A few classes for each image, after the service time."""
        if self._seconds:
            async with self._free:
                await asyncio.sleep(self._seconds)
        rows = request.inputs[0].shape[0]
        best = CLASSES[: max(1, request.outputs[0].parameters["classification"].int64_param)]
        response = pb.ModelInferResponse(model_name=request.model_name, model_version="1")
        response.outputs.add(name="PREDICTION", datatype="BYTES", shape=[rows, len(best)])
        response.outputs.add(name="IMAGE_STATUS", datatype="INT32", shape=[rows, 1])
        response.raw_output_contents.append(b"".join(best) * rows)
        response.raw_output_contents.append(np.zeros(rows, np.int32).tobytes())
        return response


async def serve(servicer: Servicer, port: int = 0) -> tuple[grpc.aio.Server, int]:
    """Start a server; returns it and its port."""
    server = grpc.aio.server(options=OPTIONS)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, port


async def main(number: int, instances: int, seconds: float, slow: float) -> None:
    """Serve until stdin ends; the last Triton is `slow` times slower."""
    servicers = [Servicer(instances, seconds * (slow if index == number - 1 else 1)) for index in range(number)]
    running = [await serve(servicer) for servicer in servicers]
    print(json.dumps([port for _, port in running]), flush=True)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        index = int(line[1])
        server, port = running[index]
        if line[0] == "stop":
            await server.stop(0)
        else:
            running[index] = await serve(servicers[index], port)
        print("done", flush=True)
    await asyncio.gather(*(server.stop(0) for server, _ in running))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.04)
    parser.add_argument("--slow", type=float, default=1.0)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that measures, which closes stdin
    asyncio.run(main(given.number, given.instances, given.seconds, given.slow))
