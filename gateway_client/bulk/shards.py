"""Shards: `--shard 3/16` classifies a sixteenth of the images, so that 16 processes divide them."""

import hashlib
import re
from dataclasses import dataclass

from gateway_client import NamedImage
from gateway_client.bulk import BulkError
from gateway_client.bulk.rows import printable

MAX_SHARDS = 10_000


class ShardUnreadable(BulkError):
    """A shard does not have the form NUMBER/COUNT."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of the images, from 1 on; an image's name decides its part, whatever else is there."""

    number: int
    count: int

    def has(self, image: NamedImage) -> bool:
        """Whether an image is in this part."""
        digest = hashlib.blake2b(printable(image.name).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}-of-{self.count}"


def read_shard(text: str) -> Shard:
    """Read NUMBER/COUNT; raises ShardUnreadable."""
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text, re.ASCII)
    shard = Shard(int(match[1]), int(match[2])) if match else None
    if shard is None or not 1 <= shard.number <= shard.count <= MAX_SHARDS:
        raise ShardUnreadable(
            f"--shard {text}: needs NUMBER/COUNT, such as 3/16: from 1 to the count, which is at most {MAX_SHARDS:,}"
        )
    return shard
