"""Seals images, so that Triton's response cache never returns the answer of another image.

The cache's key is an unkeyed 64-bit hash of the inputs' bytes, and a hit compares nothing (Triton core,
cache_manager.cc): two images with equal keys are found in a second, and the second would get the first one's answer. So
each row of RAW_IMAGE ends in a code that cannot be computed without the secret, after the bytes that decoders read.
Equal images have equal codes and still hit. Clients that call Triton directly, for example for other outputs, cannot
store an answer under the gateway's keys either.
"""

import hmac

from blake3 import blake3

SEAL_BYTES = 16
RECENT_CODES = 100_000
"""Codes that RecentCodes keeps, in 10 MB of memory."""
PURPOSE = b"RAW_IMAGE seal 4"
"""Separates these codes from other uses of the secret. Increase the number when the gateway requests other outputs: the
cache's key does not include them, and an answer with other outputs must not be found."""
EMBEDDING_PURPOSE = b"and FEATURES 1"
"""For calls that also request FEATURES; changes like PURPOSE."""


def embedding_code(code: bytes) -> bytes:
    """The seal of an image in a call that also requests FEATURES: a different answer needs a different key.

    It is as hard to guess as the code; the code still identifies the image.
    """
    return hmac.digest(code, EMBEDDING_PURPOSE, "sha256")[:SEAL_BYTES]


class Seal:
    """Makes a message authentication code of each image, the end of its row: BLAKE3's `keyed_hash`.

    Source: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020).
    """

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, PURPOSE, "sha256")

    def code(self, image: bytes) -> bytes:
        """The code of one image."""
        return blake3(image, key=self._key).digest(SEAL_BYTES)


class RecentCodes:
    """The codes of the last `most` different images that were sent: only these may have an answer in Triton's cache.

    A cached answer has some kilobytes, so a cache of 1 GB has fewer answers than this has codes.
    """

    def __init__(self, most: int = RECENT_CODES) -> None:
        self._most = most
        self._codes: dict[bytes, None] = {}

    def add(self, code: bytes) -> bool:
        """Add a code; returns whether it was there before."""
        known = code in self._codes
        if known:
            del self._codes[code]
        elif len(self._codes) >= self._most:
            del self._codes[next(iter(self._codes))]
        self._codes[code] = None
        return known
