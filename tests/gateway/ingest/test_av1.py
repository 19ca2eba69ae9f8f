"""The size of an AV1 picture is found behind whatever its sequence header says before."""

from itertools import product

import pytest

from gateway.ingest.formats.av1 import frame_size

SIZE = (4000, 3000)
TEMPORAL_DELIMITER, SEQUENCE_HEADER, FRAME, PADDING = 2, 1, 6, 15


class Writer:
    """Bits from the highest on, as the specification's f(n) and uvlc()."""

    def __init__(self) -> None:
        self._bits = ""

    def write(self, value: int, count: int) -> None:
        self._bits += f"{value:0{count}b}"

    def uvlc(self, value: int) -> None:
        length = (value + 1).bit_length()
        self._bits += "0" * (length - 1) + f"{value + 1:b}"

    def to_bytes(self) -> bytes:
        padded = self._bits + "0" * (-len(self._bits) % 8)
        return int(padded, 2).to_bytes(len(padded) // 8, "big")


def sequence_header(*, reduced=False, timing=False, equal=False, model=False, delays=False, levels=(8,)) -> bytes:
    """Section 5.5.1 of the specification."""
    bits = Writer()
    bits.write(0, 3)  # seq_profile
    bits.write(int(reduced), 1)  # still_picture
    bits.write(int(reduced), 1)  # reduced_still_picture_header
    if reduced:
        bits.write(levels[0], 5)
    else:
        bits.write(int(timing), 1)
        if timing:
            bits.write(1, 32)
            bits.write(25, 32)
            bits.write(int(equal), 1)
            if equal:
                bits.uvlc(1234)
            bits.write(int(model), 1)
            if model:
                bits.write(9, 5)  # buffer_delay_length_minus_1
                bits.write(1, 32)
                bits.write(9, 5)
                bits.write(9, 5)
        bits.write(int(delays), 1)
        bits.write(len(levels) - 1, 5)
        for number, level in enumerate(levels):
            bits.write(0xABC, 12)
            bits.write(level, 5)
            if level > 7:
                bits.write(1, 1)
            if timing and model:
                bits.write(number % 2, 1)
                if number % 2:
                    bits.write(0x3FF, 10)
                    bits.write(0x3FF, 10)
                    bits.write(1, 1)
            if delays:
                bits.write(1, 1)
                bits.write(7, 4)
    bits.write(12 - 1, 4)
    bits.write(13 - 1, 4)
    bits.write(SIZE[0] - 1, 12)
    bits.write(SIZE[1] - 1, 13)
    return bits.to_bytes() + b"\x5a\xa5"


def unit(kind: int, payload: bytes, *, extension: bool = False, sized: bool = True) -> bytes:
    """An open bitstream unit (section 5.3)."""
    header = bytes([kind << 3 | extension << 2 | sized << 1]) + b"\x20" * extension
    if not sized:
        return header + payload
    size, length = len(payload), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return header + bytes(length) + bytes([size]) + payload


@pytest.mark.parametrize(
    ("timing", "equal", "model", "delays", "levels"),
    [flags for flags in product(*[(False, True)] * 4, [(8,), (4, 9, 31)]) if flags[0] or not (flags[1] or flags[2])],
)
def test_optional_parts_of_the_header_are_skipped(timing, equal, model, delays, levels):
    header = sequence_header(timing=timing, equal=equal, model=model, delays=delays, levels=levels)
    assert frame_size(unit(SEQUENCE_HEADER, header)) == SIZE


def test_a_still_picture_has_a_shorter_header():
    assert frame_size(unit(SEQUENCE_HEADER, sequence_header(reduced=True))) == SIZE


@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("sized", [False, True])
def test_the_unit_may_have_an_extension_and_reach_to_the_end(extension, sized):
    assert frame_size(unit(SEQUENCE_HEADER, sequence_header(), extension=extension, sized=sized)) == SIZE


def test_units_without_a_picture_may_stand_before_it():
    before = unit(TEMPORAL_DELIMITER, b"") + unit(PADDING, bytes(300), extension=True)
    assert frame_size(before + unit(SEQUENCE_HEADER, sequence_header())) == SIZE


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        unit(TEMPORAL_DELIMITER, b""),
        unit(FRAME, bytes(9)) + unit(SEQUENCE_HEADER, sequence_header()),
        unit(PADDING, b"") * 16 + unit(SEQUENCE_HEADER, sequence_header()),
        bytes([PADDING << 3 | 2]) + b"\xff" * 8 + unit(SEQUENCE_HEADER, sequence_header()),
    ],
    ids=["nothing", "no header", "a picture first", "too many units", "a size without end"],
)
def test_no_size_where_there_is_no_header_to_be_found(stream):
    assert frame_size(stream) is None


def test_a_header_that_is_cut_off_has_another_size_and_no_error():
    whole = unit(SEQUENCE_HEADER, sequence_header(timing=True, equal=True, model=True, delays=True))
    assert [frame_size(whole[:length]) for length in range(1, 8)].count(SIZE) == 0
