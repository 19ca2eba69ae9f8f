"""Sends a call in as many requests as its model needs, and finds the images that make it fail."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.errors import GatewayError, InferenceFailed
from gateway.inference.backend import Call, InferResult, Row
from gateway.triton.codec import Codec
from gateway.triton.endpoint import TritonEndpoint


@dataclass(slots=True)
class Sender:
    """Sends calls to one model of one Triton; see TritonEndpoint.infer for the parameters."""

    endpoint: TritonEndpoint
    codec: Codec
    class_count: int | None
    embeddings: bool

    async def send(self, call: Call) -> InferResult:
        """The answer to a call, with a row for each of its images.

        The first call of a model may mix what its model does not take together, since its limits are known only then;
        its requests are sent one after the other.
        """
        if len(call.batch) == 1 or (self.codec.mixes_lengths and len(call.batch) <= self.codec.most_images):
            return await self._send(call)
        parts = list(self._parts(call))
        if len(parts) == 1:
            return await self._send(call)
        results = [(part, await self._send(_rows(call, part))) for part in parts]
        rows = {number: row for part, result in results for number, row in zip(part, result.rows, strict=True)}
        return replace(results[0][1], rows=tuple(rows[number] for number in sorted(rows)))

    def _parts(self, call: Call) -> Iterator[Sequence[int]]:
        """The rows of a call in groups that the model takes together."""
        by_length: dict[int, list[int]] = {}
        for number, image in enumerate(call.batch.images):
            by_length.setdefault(0 if self.codec.mixes_lengths else len(image), []).append(number)
        most = max(1, self.codec.most_images)
        for numbers in by_length.values():
            yield from (numbers[start : start + most] for start in range(0, len(numbers), most))

    async def _send(self, call: Call) -> InferResult:
        if self.codec.reports_images:
            return await self._infer(call)
        try:
            return await self._infer(call)
        except InferenceFailed as failure:
            return await self._one_by_one(call, failure)

    async def _one_by_one(self, call: Call, failure: InferenceFailed) -> InferResult:
        """Send the images of a failed call alone: those that fail again cannot be decoded.

        Raises `failure` if the model fails without them too. An image is sent once more even if it was alone: Triton
        may have run its first call together with another client's image.
        """
        try:
            proof = await self._infer(replace(call, batch=self.codec.probe()))
        except GatewayError:
            raise failure from failure.__cause__
        rows = []
        for number in range(len(call.batch)):
            try:
                rows.append((await self._infer(_rows(call, [number]))).rows[0])
            except InferenceFailed:
                rows.append(Row(decoded=False))
        return replace(proof, rows=tuple(rows))

    async def _infer(self, call: Call) -> InferResult:
        return await self.endpoint.infer(
            call, class_count=self.class_count, embeddings=self.embeddings, codec=self.codec
        )


def _rows(call: Call, rows: Sequence[int]) -> Call:
    """The same call for some of its images."""
    return replace(call, batch=call.batch.rows(rows))
