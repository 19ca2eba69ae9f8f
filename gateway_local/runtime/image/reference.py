"""The name of an image: REGISTRY/NAME[:TAG][@DIGEST], as `docker pull` takes it, but always with its registry."""

import re
from dataclasses import dataclass
from typing import Self

from gateway_local.runtime.image.errors import ImageError

DEFAULT_TAG = "latest"
MAX_LENGTH = 512

_COMPONENT = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
# As for Docker, a name without a dot or a port is no host, but the first part of a repository's name.
_HOST = r"localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:)|\[[0-9a-fA-F:]+\]"
_REGISTRY = re.compile(rf"(?:{_HOST})(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
"""The digests that are accepted. The specification also allows SHA-512, which no common registry uses."""


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image of a registry; `version` is its digest if one is given, else its tag."""

    registry: str
    repository: str
    version: str

    @property
    def digest(self) -> str | None:
        """The digest, if the reference has one."""
        return self.version if DIGEST.fullmatch(self.version) else None

    def __str__(self) -> str:
        separator = "@" if self.digest else ":"
        return f"{self.registry}/{self.repository}{separator}{self.version}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference; raises ImageError."""
        if len(text) > MAX_LENGTH:
            raise ImageError(f"the name of the image has {len(text)} characters; at most {MAX_LENGTH} are allowed")
        if "://" in text:
            raise ImageError(f"{text!r} is a URL: leave out what stands before REGISTRY/NAME:TAG")
        name, at, digest = text.partition("@")
        registry, slash, rest = name.partition("/")
        if not slash or not _REGISTRY.fullmatch(registry):
            raise ImageError(f"{text!r} does not name its registry: write REGISTRY/NAME:TAG")
        repository, colon, tag = rest.partition(":")
        if not _REPOSITORY.fullmatch(repository):
            raise ImageError(f"{text!r}: {repository!r} is not the name of an image, such as nvidia/tritonserver")
        if colon and not _TAG.fullmatch(tag):
            raise ImageError(f"{text!r}: {tag!r} is not a tag, such as 26.11-py3")
        if at and not DIGEST.fullmatch(digest):
            raise ImageError(f"{text!r}: {digest!r} is not a digest, which is sha256: and 64 digits of 0-9 and a-f")
        return cls(registry, repository, digest or tag or DEFAULT_TAG)
