"""(b) Straight to the ensemble over gRPC, one image a call."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient

from bench.measurement import Measurement, WrongAnswer
from bench.photos import Photo
from gateway.ingest.padding import pad
from gateway.triton.contract import ENSEMBLE_MODEL, IMAGE_STATUS, PREDICTION, RAW_IMAGE, RAW_IMAGE_LENGTH

TOP_K = 5


class GrpcLoad:
    """`concurrency` calls that are always in flight."""

    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, photos: list[Photo], seconds: float, concurrency: int) -> Measurement:
        """Send for `seconds` and wait for every answer; raises WrongAnswer."""
        return asyncio.run(self._run(photos, seconds, concurrency))

    async def _run(self, photos: list[Photo], seconds: float, concurrency: int) -> Measurement:
        measurement = Measurement()
        outputs = [InferRequestedOutput(PREDICTION, class_count=TOP_K), InferRequestedOutput(IMAGE_STATUS)]
        calls = [(photo, _inputs(photo)) for photo in photos]
        started = time.perf_counter()

        def more() -> Iterator[tuple[Photo, list[InferInput]]]:
            while time.perf_counter() - started < seconds:
                yield calls[len(measurement.latencies_seconds) % len(calls)]

        async def send() -> None:
            for photo, inputs in more():
                sent = time.perf_counter()
                result = await client.infer(ENSEMBLE_MODEL, inputs, outputs=outputs)
                measurement.latencies_seconds.append(time.perf_counter() - sent)
                label = result.as_numpy(PREDICTION)[0, 0].decode().split(":", 2)[2]
                if result.as_numpy(IMAGE_STATUS)[0, 0] or label != photo.label:
                    raise WrongAnswer(f"{photo.name} is {photo.label!r}, and Triton predicts {label!r}")
                measurement.images += 1

        async with InferenceServerClient(self._url) as client:
            await asyncio.gather(*(send() for _ in range(concurrency)))
        measurement.seconds = time.perf_counter() - started
        return measurement


def labelled(url: str, photo: Photo) -> Photo:
    """The photo with the label that the ensemble at `url` gives it."""

    async def ask() -> str:
        async with InferenceServerClient(url) as client:
            outputs = [InferRequestedOutput(PREDICTION, class_count=1)]
            result = await client.infer(ENSEMBLE_MODEL, _inputs(photo), outputs=outputs)
            return str(result.as_numpy(PREDICTION)[0, 0].decode().split(":", 2)[2])

    return replace(photo, label=asyncio.run(ask()))


def _inputs(photo: Photo) -> list[InferInput]:
    raw_image, length = pad([photo.data])
    return [
        InferInput(RAW_IMAGE, raw_image.shape, "UINT8").set_data_from_numpy(np.ascontiguousarray(raw_image)),
        InferInput(RAW_IMAGE_LENGTH, length.shape, "INT32").set_data_from_numpy(length),
    ]
