"""Encoded images of different lengths in one tensor."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pad(payloads: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Zero-pad encoded images to one length.

    Returns RAW_IMAGE uint8 [N, max length] and RAW_IMAGE_LENGTH int32 [N, 1]; raises ValueError for an empty sequence.
    """
    if not payloads:
        raise ValueError("no images to pad")
    lengths = np.fromiter(map(len, payloads), dtype=np.int32, count=len(payloads))
    raw_image = np.empty((len(payloads), int(lengths.max())), dtype=np.uint8)
    for row, payload in zip(raw_image, payloads, strict=True):
        row[: len(payload)] = np.frombuffer(payload, dtype=np.uint8)
        row[len(payload) :] = 0
    return raw_image, lengths.reshape(-1, 1)
