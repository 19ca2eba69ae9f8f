"""What can go wrong with a Triton out of an image; the messages are for users and include what to do."""

from gateway_local.runtime.base import TritonRuntimeError


class ImageError(TritonRuntimeError):
    """The image cannot be fetched or unpacked, or does not hold what it should."""


class WrongDigest(ImageError):
    """A registry sent other bytes than the digest names."""


class RegistryUnreachable(ImageError):
    """The registry does not answer, or stops answering."""


class ImageUnusable(TritonRuntimeError):
    """The image's Triton does not run on this machine or this Python."""
