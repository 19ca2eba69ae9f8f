"""The size in an HEVC sequence parameter set (ITU-T H.265, section 7.3.2.2)."""

from gateway.ingest.formats.bits import HEADER_STEPS, Bits
from gateway.ingest.formats.step_limit import Steps

_SPS = 33
_MOST_PARAMETER_SETS = 16


def coded_size(hvcc: bytes, steps: Steps) -> tuple[int, int, int] | None:
    """Width and height of the largest picture that the stream codes, and bits of a sample.

    `hvcc` is a decoder configuration record (ISO/IEC 14496-15, section 8.3.3.1). None where it has no
    sequence parameter set. Raises IndexError where it is cut off, InvalidImage where `steps` are at their end.
    """
    largest: tuple[int, int, int] | None = None
    position, left = 23, _MOST_PARAMETER_SETS
    for _ in range(hvcc[22]):
        kind = hvcc[position] & 63
        count = int.from_bytes(hvcc[position + 1 : position + 3], "big")
        position += 3
        for _ in range(count):
            left -= 1
            if left < 0:
                raise IndexError("too many parameter sets")
            size = int.from_bytes(hvcc[position : position + 2], "big")
            unit, position = hvcc[position + 2 : position + 2 + size], position + 2 + size
            if position > len(hvcc):
                raise IndexError("the configuration is cut off")
            if kind == _SPS:
                steps.take(HEADER_STEPS)
                largest = max(largest or (0, 0, 0), _size(unit), key=lambda size: size[0] * size[1])
    return largest


def _size(unit: bytes) -> tuple[int, int, int]:
    # Encoders put a 3 where two zeros would look like the beginning of a unit (section 7.4.2).
    bits = Bits(unit[2:512].replace(b"\0\0\3", b"\0\0"))
    bits.read(4)
    sub_layers = bits.read(3)  # sps_max_sub_layers_minus1
    bits.read(1)
    _skip_levels(bits, sub_layers)
    bits.exp_golomb()  # sps_seq_parameter_set_id
    if bits.exp_golomb() == 3:  # chroma_format_idc
        bits.read(1)
    width, height = bits.exp_golomb(), bits.exp_golomb()
    if bits.read(1):  # conformance_window_flag
        for _ in range(4):
            bits.exp_golomb()
    return width, height, 8 + bits.exp_golomb()


def _skip_levels(bits: Bits, sub_layers: int) -> None:
    """profile_tier_level (section 7.3.3)."""
    bits.read(88 + 8)
    present = [(bits.read(1), bits.read(1)) for _ in range(sub_layers)]
    if sub_layers:
        bits.read(2 * (8 - sub_layers))
    for profile, level in present:
        bits.read(88 * profile)
        bits.read(8 * level)
