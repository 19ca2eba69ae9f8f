"""Requests of the Open Inference Protocol, version 2 over REST, with Triton's binary tensor data and classification.

The protocol: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol; Triton's extensions:
https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/protocol/. A request is one JSON object
whose one input is IMAGE, BYTES [N] or [N, 1], an encoded image in each element:

    {"id": "…", "parameters": {…}, "inputs": [{"name": "IMAGE", "datatype": "BYTES", "shape": [2], "data": ["…", "…"]}],
     "outputs": [{"name": "PREDICTION", "parameters": {"classification": 5, "binary_data": true}}]}

with base64 in `data`; or with `"parameters": {"binary_data_size": S}` instead and S bytes after the object: for each
element its length, uint32 little-endian, and its bytes. The HTTP header Inference-Header-Content-Length then has the
length of the object.
"""

from collections.abc import AsyncIterable, AsyncIterator

from gateway.errors import InvalidBody, InvalidParameter
from gateway.ingest.json_text import invalid, read_base64, read_json
from gateway.ingest.upload import (
    Hold,
    Upload,
    UploadLimits,
    uncounted,
)
from gateway.plugins.oip.documents import IMAGE
from gateway.plugins.oip.members import InferenceRequest, parse_input, parse_request

LENGTH_BYTES = 4


class InferenceReader:
    """Reads one request from the chunks of its body.

    `header_bytes` is Inference-Header-Content-Length, None if the whole body is JSON.
    """

    def __init__(
        self,
        chunks: AsyncIterable[bytes],
        header_bytes: int | None,
        limits: UploadLimits,
        hold: Hold = uncounted,
    ) -> None:
        self._body = _Body(chunks, limits)
        self._header_bytes = header_bytes
        self._limits = limits
        self._hold = hold
        self.request = InferenceRequest()
        """The request; it has its members before the first image is yielded."""

    async def uploads(self) -> AsyncIterator[Upload]:
        """Yield the images, in order, each as soon as it is complete.

        Bad base64 and an image larger than `max_file_bytes` are errors of that image. Raises InvalidBody,
        InvalidParameter, TooManyFiles or RequestTooLarge, after the images before the fault.
        """
        body = await read_json(self._body.part(self._header_bytes), self._limits, self._hold)
        if not isinstance(body, dict):
            raise invalid("the body must be an object with the member inputs")
        inputs = body.pop("inputs", [])
        self.request = parse_request(body)
        if not isinstance(inputs, list):
            raise invalid("inputs must be an array")
        if len(inputs) > 1:
            raise InvalidParameter(f"'inputs': only one input is allowed, {IMAGE}, which may have many elements.")
        given = inputs[0] if inputs else None
        if not (given is None or isinstance(given, dict)):
            raise invalid("each of the inputs must be an object")
        texts = _texts(given)
        count, nbytes = parse_input(given)
        if count > self._limits.max_files:
            raise self._limits.too_many_files()
        if nbytes is None:
            if count != len(texts):
                raise InvalidParameter(f"'shape': says {count} images, but data has {len(texts)}.")
            async for upload in self._read_texts(texts):
                yield upload
        elif self._header_bytes is None:
            raise InvalidParameter("'binary_data_size': needs the HTTP header Inference-Header-Content-Length.")
        else:
            self._hold(0)
            async for upload in self._read_binary(count, nbytes):
                yield upload
        await self._body.expect_end()

    async def _read_texts(self, texts: list[str]) -> AsyncIterator[Upload]:
        """Decode the elements of a tensor in base64, and forget each."""
        left = sum(map(len, texts))
        texts.reverse()
        for index in range(len(texts)):
            left -= len(texts[-1])
            yield Upload(index, "", *await read_base64(texts.pop(), self._limits, self._hold, left))
            self._hold(left)

    async def _read_binary(self, count: int, nbytes: int) -> AsyncIterator[Upload]:
        """Read the elements of a BYTES tensor with `nbytes` in total."""
        left = nbytes
        for index in range(count):
            if left < LENGTH_BYTES:
                raise InvalidBody(f"'binary_data_size': {nbytes:,} bytes end before image {index} of {count}.")
            length = int.from_bytes(await self._body.read(LENGTH_BYTES), "little")
            left -= LENGTH_BYTES + length
            if left < 0:
                raise InvalidBody(
                    f"The binary data is malformed: image {index} claims to have {length:,} bytes, {-left:,} more than "
                    f"'binary_data_size' leaves."
                )
            yield await self._read_element(index, length)
            self._hold(0)
        if left:
            raise InvalidBody(f"'binary_data_size': {left:,} bytes are left after the last of {count} images.")

    async def _read_element(self, index: int, length: int) -> Upload:
        if length <= self._limits.max_file_bytes:
            return Upload(index, "", await self._body.read(length, self._hold))
        async for _ in self._body.part(length):
            pass
        return Upload(index, "", b"", self._limits.file_too_large())


def _texts(given: dict[str, object] | None) -> list[str]:
    """The elements of `data`, which is replaced by a placeholder; raises InvalidBody."""
    if given is None or "data" not in given:
        return []
    data, given["data"] = given["data"], None
    if not isinstance(data, list):
        raise invalid("data must be an array")
    # Of shape [N, 1], whose data may also be flat.
    texts = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in data]
    if not all(isinstance(each, str) for each in texts):
        raise invalid("the elements of data must be strings, each an image in base64")
    return texts


class _Body:
    """Reads a body in parts; only the current chunk is in memory."""

    def __init__(self, chunks: AsyncIterable[bytes], limits: UploadLimits) -> None:
        self._chunks = aiter(chunks)
        self._limits = limits
        self._received = 0
        self._rest = memoryview(b"")

    async def part(self, nbytes: int | None) -> AsyncIterator[bytes]:
        """Yield the next `nbytes` in pieces, None for all; raises InvalidBody if the body ends before."""
        left = nbytes
        while left is None or left > 0:
            if not self._rest and not await self._next_chunk():
                if left is None:
                    return
                raise InvalidBody(
                    f"The body ends {left:,} bytes before Inference-Header-Content-Length and 'binary_data_size' say."
                )
            piece, self._rest = self._rest[:left], self._rest[left:] if left is not None else memoryview(b"")
            if left is not None:
                left -= len(piece)
            yield bytes(piece)

    async def read(self, nbytes: int, hold: Hold = uncounted) -> bytes:
        """Read the next `nbytes`; raises InvalidBody if the body ends before."""
        data = bytearray()
        async for piece in self.part(nbytes):
            data += piece
            hold(len(data))
        return bytes(data)

    async def expect_end(self) -> None:
        """Raise InvalidBody if the body has more data."""
        if self._rest or await self._next_chunk():
            raise InvalidBody("The body is longer than Inference-Header-Content-Length and 'binary_data_size' say.")

    async def _next_chunk(self) -> bool:
        async for chunk in self._chunks:
            self._received += len(chunk)
            if self._received > self._limits.max_request_bytes:
                raise self._limits.request_too_large()
            if chunk:
                self._rest = memoryview(chunk)
                return True
        return False
