"""The size in an AV1 sequence header (AV1 Bitstream & Decoding Process Specification, section 5.5.1)."""

from gateway.ingest.formats.bits import Bits

_SEQUENCE_HEADER, _TEMPORAL_DELIMITER, _PADDING, _METADATA = 1, 2, 15, 5
_MAX_UNITS = 16


def frame_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of the largest frame that the stream may hold, which is what decoders set memory aside for.

    `data` is the beginning of a stream of open bitstream units. None where it does not begin with a sequence header.
    """
    position = 0
    for _ in range(_MAX_UNITS):
        if position >= len(data):
            return None
        header = data[position]
        kind, extended, sized = header >> 3 & 15, header & 4, header & 2
        position += 2 if extended else 1
        size, position = _leb128(data, position) if sized else (len(data) - position, position)
        if kind == _SEQUENCE_HEADER:
            return _sequence_size(Bits(data[position : position + size]))
        if kind not in (_TEMPORAL_DELIMITER, _PADDING, _METADATA):
            return None
        position += size
    return None


def _leb128(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(8):
        byte = data[position + index] if position + index < len(data) else 0
        value |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return value, position + index + 1
    return value, position + 8


def _sequence_size(bits: Bits) -> tuple[int, int]:
    bits.read(3 + 1)  # seq_profile, still_picture
    if bits.read(1):  # reduced_still_picture_header
        bits.read(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.read(4) + 1, bits.read(4) + 1
    return bits.read(width_bits) + 1, bits.read(height_bits) + 1


def _skip_operating_points(bits: Bits) -> None:
    delay_bits = 0
    if bits.read(1):  # timing_info_present_flag
        bits.read(64)
        if bits.read(1):  # equal_picture_interval
            bits.exp_golomb()
        if bits.read(1):  # decoder_model_info_present_flag
            delay_bits = bits.read(5) + 1
            bits.read(32 + 5 + 5)
    display_delays = bits.read(1)
    for _ in range(bits.read(5) + 1):
        bits.read(12)
        if bits.read(5) > 7:  # seq_level_idx
            bits.read(1)
        if delay_bits and bits.read(1):
            bits.read(2 * delay_bits + 1)
        if display_delays and bits.read(1):
            bits.read(4)
