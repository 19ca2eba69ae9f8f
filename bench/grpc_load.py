"""The load generator for Triton itself: calls of its ensemble over gRPC, one image each."""

import asyncio
import time

import numpy as np
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient

from bench.measurement import Measurement, WrongAnswer
from bench.photos import Photo
from gateway.triton.contract import ENSEMBLE_MODEL, IMAGE_STATUS, PREDICTION, RAW_IMAGE, RAW_IMAGE_LENGTH
from gateway_models.blocking_triton import pad

TOP_K = 5


class GrpcLoad:
    """Calls Triton from a separate process (bench.remote)."""

    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, photos: list[Photo], seconds: float, concurrency: int) -> Measurement:
        """Keep `concurrency` calls in flight for `seconds`; raises WrongAnswer."""
        return asyncio.run(self._run(photos, seconds, concurrency))

    async def _run(self, photos: list[Photo], seconds: float, concurrency: int) -> Measurement:
        measurement = Measurement()
        calls = [(photo, _inputs(photo)) for photo in photos]
        outputs = [InferRequestedOutput(PREDICTION, class_count=TOP_K), InferRequestedOutput(IMAGE_STATUS)]
        started = time.perf_counter()

        async def send() -> None:
            while time.perf_counter() - started < seconds:
                photo, inputs = calls[len(measurement.latencies_seconds) % len(calls)]
                sent = time.perf_counter()
                result = await client.infer(ENSEMBLE_MODEL, inputs, outputs=outputs)
                measurement.latencies_seconds.append(time.perf_counter() - sent)
                label = result.as_numpy(PREDICTION)[0, 0].decode().split(":", 2)[2]
                if result.as_numpy(IMAGE_STATUS)[0, 0] or label != photo.label:
                    raise WrongAnswer(f"{photo.name}: expected {photo.label!r}, got {label!r}")
                measurement.images += 1

        async with InferenceServerClient(self._url) as client:
            await asyncio.gather(*(send() for _ in range(concurrency)))
        measurement.seconds = time.perf_counter() - started
        return measurement


def _inputs(photo: Photo) -> list[InferInput]:
    raw_image, length = pad([photo.data])
    return [
        InferInput(RAW_IMAGE, raw_image.shape, "UINT8").set_data_from_numpy(np.ascontiguousarray(raw_image)),
        InferInput(RAW_IMAGE_LENGTH, length.shape, "INT32").set_data_from_numpy(length),
    ]
