"""What keeps Triton's response cache from answering one picture with another's answer.

The cache's key is an unkeyed 64-bit hash of the inputs' bytes, and a hit compares nothing (Triton core,
cache_manager.cc): two pictures with one key are found in a second, and the second would get the first one's answer. So
each row of RAW_IMAGE ends in a code that nobody without the secret can compute, where no decoder looks. The same
picture has the same code and still hits. Whoever asks Triton directly, for other outputs say, cannot leave an answer
under the gateway's keys either.
"""

import hashlib

import numpy as np

from gateway.inference.backend import Batch
from gateway.ingest.padding import SEAL_BYTES

PURPOSE = b"RAW_IMAGE seal 1"
"""Sets these codes apart from any other use of the secret. A new number where the gateway asks for other outputs: the
cache's key knows nothing of them, and an answer with other outputs must not be found."""


class Seal:
    """Writes a message authentication code of each image (keyed BLAKE2b, RFC 7693) into the end of its row."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.blake2b(secret, person=b"cache secret").digest()

    def apply(self, batch: Batch) -> list[bytes]:
        """Fill the last SEAL_BYTES of each row, in place; returns the codes, which identify the images.

        Raises ValueError where an image reaches into them: see gateway.ingest.padding.
        """
        room = batch.raw_image.shape[1] - SEAL_BYTES
        if len(batch.raw_image_length) and int(batch.raw_image_length.max()) > room:
            raise ValueError(f"RAW_IMAGE has no {SEAL_BYTES} bytes behind its longest image")
        codes = []
        for row, length in zip(batch.raw_image, batch.raw_image_length.ravel().tolist(), strict=True):
            code = hashlib.blake2b(row[:length].data, digest_size=SEAL_BYTES, key=self._key, person=PURPOSE).digest()
            row[room:] = np.frombuffer(code, np.uint8)
            codes.append(code)
        return codes
