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
from gateway.ingest.upload import Hold, Limits, Upload, file_too_large, request_too_large, too_many_files, uncounted
from gateway_plugins.oip.documents import IMAGE
from gateway_plugins.oip.members import InferenceRequest, parse_input, parse_request, shortened
from gateway_plugins.shared.base64_stream import read_base64
from gateway_plugins.shared.json_source import JsonSource, invalid

LENGTH_BYTES = 4


class InferenceReader:
    """Reads one request from the chunks of its body.

    `header_bytes` is Inference-Header-Content-Length, None if the whole body is JSON.
    """

    def __init__(
        self,
        chunks: AsyncIterable[bytes],
        header_bytes: int | None,
        limits: Limits,
        *,
        max_class_count: int,
        hold: Hold = uncounted,
    ) -> None:
        self._body = _Body(chunks, limits)
        self._header_bytes = header_bytes
        self._limits = limits
        self._hold = hold
        self._max_class_count = max_class_count
        self._members: dict[str, object] = {}
        self._input: dict[str, object] | None = None
        self._images = 0
        self._parsed: InferenceRequest | None = None

    @property
    def request(self) -> InferenceRequest:
        """The request as read so far; complete at the end, and before the first image if the images are binary data.

        Raises InvalidParameter.
        """
        if self._parsed is None:
            self._parsed = parse_request(self._members, max_class_count=self._max_class_count)
        return self._parsed

    async def uploads(self) -> AsyncIterator[Upload]:
        """Yield the images, in order, each as soon as it is complete.

        Bad base64 and an image larger than `max_file_bytes` are errors of that image. Raises InvalidBody,
        InvalidParameter, HeadersTooLarge, TooManyFiles or RequestTooLarge, after the images before the fault.
        """
        source = JsonSource(self._body.part(self._header_bytes), self._limits)
        await source.expect(b"{", "the body must be an object with the member inputs")
        async for name in source.members():
            if name in self._members:
                raise invalid(f"it has two members {shortened(name)}")
            self._members[name] = None
            if name == "inputs":
                async for upload in self._read_inputs(source):
                    yield upload
            else:
                self._members[name] = await source.value()
                self._parsed = None
        await source.expect_end()
        _ = self.request  # validate it before more is read
        tensor = parse_input(self._input)
        if tensor.images > self._limits.max_files:
            raise too_many_files(self._limits)
        if tensor.binary_bytes is None:
            if tensor.images != self._images:
                raise InvalidParameter(f"'shape': says {tensor.images} images, but data has {self._images}.")
        elif self._header_bytes is None:
            raise InvalidParameter("'binary_data_size': needs the HTTP header Inference-Header-Content-Length.")
        else:
            async for upload in self._read_binary(tensor.images, tensor.binary_bytes):
                yield upload
        await self._body.expect_end()

    async def _read_inputs(self, source: JsonSource) -> AsyncIterator[Upload]:
        await source.expect(b"[", "inputs must be an array")
        async for _ in source.elements():
            if self._input is not None:
                raise InvalidParameter(f"'inputs': only one input is allowed, {IMAGE}, which may have many elements.")
            self._input = {}
            await source.expect(b"{", "each of the inputs must be an object")
            async for name in source.members():
                if name in self._input:
                    raise invalid(f"an input has two members {shortened(name)}")
                self._input[name] = None
                if name == "data":
                    async for upload in self._read_data(source):
                        yield upload
                else:
                    self._input[name] = await source.value()

    async def _read_data(self, source: JsonSource) -> AsyncIterator[Upload]:
        await source.expect(b"[", "data must be an array")
        async for index in source.elements():
            symbol = await source.symbol()
            is_row = symbol == b"["  # of shape [N, 1], whose data may also be flat
            if is_row:
                symbol = await source.symbol()
            if symbol != b'"':
                raise invalid("the elements of data must be strings, each an image in base64")
            if index == self._limits.max_files:
                raise too_many_files(self._limits)
            data, error = await read_base64(source, self._limits, self._hold)
            if is_row:
                await source.expect(b"]", "each row of data must hold exactly one image")
            self._images = index + 1
            yield Upload(index, "", data, error)
            self._hold(0)

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
        return Upload(index, "", b"", file_too_large(self._limits))


class _Body:
    """Reads a body in parts; only the current chunk is in memory."""

    def __init__(self, chunks: AsyncIterable[bytes], limits: Limits) -> None:
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
                raise request_too_large(self._limits)
            if chunk:
                self._rest = memoryview(chunk)
                return True
        return False
