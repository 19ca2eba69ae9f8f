"""Protocol Buffers on the wire: what a message has is counted before any object is made of it.

The encoding: https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gateway.errors import HeadersTooLarge, InvalidBody, InvalidParameter, TooManyFiles
from gateway.values.quantities import size

MAX_MEMBERS = 256
"""Inputs, outputs, parameters and other fields of a request, at every level, without its images."""
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
INPUTS, OUTPUTS, RAW_INPUT_CONTENTS = 5, 6, 7
"""Fields of inference.ModelInferRequest."""
CONTENTS, BYTES_CONTENTS = 5, 8
"""Fields of inference.ModelInferRequest.InferInputTensor and of inference.InferTensorContents."""
MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class InputParts:
    """An input tensor: its message without the elements, and the elements."""

    description: bytes
    elements: Sequence[memoryview] = field(repr=False)


@dataclass(frozen=True, slots=True)
class InferParts:
    """A ModelInferRequest: its message without inputs and images, the inputs, and the raw contents."""

    description: bytes
    inputs: Sequence[InputParts]
    raw_contents: Sequence[memoryview] = field(repr=False)


class MessageScan:
    """Splits a ModelInferRequest without a copy of its images, within limits.

    It may have MAX_MEMBERS fields and `max_description_bytes` besides images, and `max_images` images.
    """

    def __init__(self, *, max_description_bytes: int, max_images: int) -> None:
        self._max_description_bytes = self._left_bytes = max_description_bytes
        self._max_images = self._left_images = max_images
        self._left_members = MAX_MEMBERS

    def split(self, message: memoryview) -> InferParts:
        """The parts of a message; raises InvalidBody, InvalidParameter, HeadersTooLarge or TooManyFiles."""
        description = bytearray()
        inputs: list[InputParts] = []
        raw_contents: list[memoryview] = []
        for number, wire_type, whole, payload in _fields(message):
            if number == RAW_INPUT_CONTENTS and wire_type == DELIMITED:
                self._count_image()
                raw_contents.append(payload)
            elif number == INPUTS and wire_type == DELIMITED:
                self._count_member(0)
                inputs.append(self._input(payload))
            else:
                self._count_member(len(whole))
                if number == OUTPUTS and wire_type == DELIMITED:
                    for _ in _fields(payload):
                        self._count_member(0)
                description += whole
        return InferParts(bytes(description), inputs, raw_contents)

    def _input(self, message: memoryview) -> InputParts:
        description = bytearray()
        elements: list[memoryview] = []
        for number, wire_type, whole, payload in _fields(message):
            if number == CONTENTS and wire_type == DELIMITED:
                self._count_member(0)
                for inner, inner_type, _, element in _fields(payload):
                    if inner != BYTES_CONTENTS or inner_type != DELIMITED:
                        raise InvalidParameter("Elements that are not BYTES must be in raw_input_contents.")
                    self._count_image()
                    elements.append(element)
            else:
                self._count_member(len(whole))
                description += whole
        return InputParts(bytes(description), elements)

    def _count_member(self, nbytes: int) -> None:
        self._left_members -= 1
        self._left_bytes -= nbytes
        if self._left_members < 0:
            raise InvalidBody(f"The message has more than {MAX_MEMBERS} fields besides its images.")
        if self._left_bytes < 0:
            most = self._max_description_bytes
            raise HeadersTooLarge(
                f"A message may have {size(most)} besides its images.", limit="max_header_bytes", value=most
            )

    def _count_image(self) -> None:
        self._left_images -= 1
        if self._left_images < 0:
            most = self._max_images
            raise TooManyFiles(f"A request may have at most {most:,} images.", limit="max_files", value=most)


def delimited(number: int, length: int) -> bytes:
    """The key and the length in front of a field of bytes."""
    key = number << 3 | DELIMITED
    encoded = bytearray()
    for value in (key, length):
        rest = value
        while rest > 0x7F:
            encoded.append(rest & 0x7F | 0x80)
            rest >>= 7
        encoded.append(rest)
    return bytes(encoded)


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview, memoryview]]:
    """Number, wire type, the whole field, and its payload; raises InvalidBody."""
    position, end = 0, len(message)
    while position < end:
        begin = position
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == DELIMITED:
            length, position = _varint(message, position)
        elif wire_type == VARINT:
            payload_begin = position
            _, position = _varint(message, position)
            yield number, wire_type, message[begin:position], message[payload_begin:position]
            continue
        elif wire_type in (FIXED32, FIXED64):
            length = 4 if wire_type == FIXED32 else 8
        else:
            raise _malformed()
        if not number or length > end - position:
            raise _malformed()
        payload = message[position : position + length]
        position += length
        yield number, wire_type, message[begin:position], payload


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for byte in message[position : position + MAX_VARINT_BYTES]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _malformed()


def _malformed() -> InvalidBody:
    return InvalidBody("The message is not a ModelInferRequest.")
