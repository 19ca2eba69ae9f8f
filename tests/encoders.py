"""Image files by the letter of their specifications, for the variants that no library writes, damaged ones included."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """A PNG chunk with its length and checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int, bit_depth: int = 8, colour: int = 2, *, interlaced: bool = False) -> bytes:
    """The signature and the first chunk."""
    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour, 0, 0, int(interlaced))
    return PNG_SIGNATURE + png_chunk(b"IHDR", header)


def png(
    samples: NDArray[np.integer],
    colour: int,
    bit_depth: int,
    *,
    interlaced: bool = False,
    chunks: tuple[tuple[bytes, bytes], ...] = (),
) -> bytes:
    """A PNG of samples [height, width, channels] from 0 to 2**bit_depth - 1 (W3C PNG, sections 7 to 11)."""
    height, width = samples.shape[:2]
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    raw = b"".join(_scanlines(samples[top::down, left::right], bit_depth) for top, left, down, right in passes)
    return (
        png_header(width, height, bit_depth, colour, interlaced=interlaced)
        + b"".join(png_chunk(kind, data) for kind, data in chunks)
        + png_chunk(b"IDAT", zlib.compress(raw, 1))
        + png_chunk(b"IEND", b"")
    )


def _scanlines(part: NDArray[np.integer], bit_depth: int) -> bytes:
    if not part.size:
        return b""
    flat = part.reshape(len(part), -1)
    if bit_depth == 16:
        packed = np.ascontiguousarray(flat.astype(">u2")).view(np.uint8)
    elif bit_depth == 8:
        packed = flat.astype(np.uint8)
    else:
        bits = np.unpackbits(flat.astype(np.uint8)[..., None], axis=2)[..., 8 - bit_depth :]
        packed = np.packbits(bits.reshape(len(part), -1), axis=1)
    return np.hstack([np.zeros((len(part), 1), np.uint8), packed]).tobytes()


def png_bomb(width: int, height: int) -> bytes:
    """A whole, valid PNG of black pixels at four bits, compressed a thousand times."""
    compressor = zlib.compressobj()
    rows = b"\0" * ((1 + (width + 1) // 2) * min(height, 1_000))
    stream = b"".join(compressor.compress(rows) for _ in range(height // min(height, 1_000))) + compressor.flush()
    header = png_header(width, height, bit_depth=4, colour=0)
    return header + png_chunk(b"IDAT", stream) + png_chunk(b"IEND", b"")


def bmp(
    rows: bytes,
    width: int,
    height: int,
    bits: int,
    *,
    header: int = 40,
    compression: int = 0,
    palette: bytes = b"",
    masks: tuple[int, ...] = (),
) -> bytes:
    """A bitmap; with a negative height its rows begin at the top."""
    colours = len(palette) // 4
    info = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, len(rows), 2835, 2835, colours, 0)
    packed_masks = struct.pack(f"<{len(masks)}I", *masks)
    info, outside = (info, packed_masks) if header == 40 else (info + packed_masks, b"")
    info += b"\0" * (header - len(info))
    offset = 14 + len(info) + len(outside) + len(palette)
    return struct.pack("<2sIHHI", b"BM", offset + len(rows), 0, 0, offset) + info + outside + palette + rows


def bmp_rows(rows: NDArray[np.integer], *, bottom_up: bool = True) -> bytes:
    """Rows of samples, each padded to four bytes."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    padded = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 4)))
    return (padded[::-1] if bottom_up else padded).tobytes()


def bmp_run_lengths(indices: NDArray[np.integer]) -> bytes:
    """Rows of palette indices in RLE8: runs of one index, an end for each line and one for the image."""
    out = bytearray()
    for row in indices[::-1].tolist():
        position = 0
        while position < len(row):
            run = 1
            while run < 255 and position + run < len(row) and row[position + run] == row[position]:
                run += 1
            out += bytes([run, row[position]])
            position += run
        out += b"\0\0"
    return bytes(out) + b"\0\1"
