"""One upload, many images: the seam of frames and of masked copies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gateway.inference.result import Result, Row
from gateway.ingest.image_formats import Header, Size
from gateway.ingest.inspection import DecodePolicy
from gateway.ingest.upload import Upload
from gateway.limits.account import Account
from gateway.timing import Deadline

if TYPE_CHECKING:
    from gateway.ingest.decoders.pool import Decoders

Report = Callable[[Any, Result], None]
"""Takes an image, the ExpandedUpload or a copy of it, and the result of it or of its file."""


@dataclass(frozen=True, slots=True)
class OpenedImage:
    """One image of an open file: its number in the file, when it is shown, and its pixels as PPM."""

    index: int
    seconds: float
    pixels: bytes


class ImageSource(Protocol):
    """A file that gives one image after the other, and may be closed in between to make room for another file."""

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        ...

    async def open(self) -> None:
        """Wait until it is open; raises what `Decoders.decode` raises."""
        ...

    async def find(self) -> bool:
        """Whether there is another image, which `next` then returns. Raises the errors of `Decoders.decode`.

        It is called before each image but the first, if a key's rate limits the request. The file is open, and may be
        closed and opened again before `next`.
        """
        ...

    async def next(self) -> OpenedImage | None:
        """The next image; None after the last one. Raises what `Decoders.decode` raises."""
        ...


class ExpandedUpload(Protocol):
    """An upload that becomes several images; see gateway.inference.request.Image."""

    upload: Upload
    info: Header
    deadline: Deadline
    report: Report

    @property
    def policy(self) -> DecodePolicy:
        """Which images the gateway decodes itself."""
        ...

    @property
    def decoders(self) -> "Decoders":
        """The decoders that open the file."""
        ...

    @property
    def account(self) -> Account:
        """The account for the request's decoding."""
        ...

    @property
    def strict(self) -> bool:
        """Whether a damaged image is an error."""
        ...

    @property
    def begun(self) -> bool:
        """Whether an image of the request has had a permit."""
        ...

    def result(self, row: Row) -> Result:
        """The result of the file."""
        ...

    async def decoded_size(self, max_side: int | None = None) -> Size:
        """The size to which an image is decoded; its shorter side has at most `max_side` if its model is unknown."""
        ...

    async def add(self, images: ImageSource, nbytes: int, begin: Callable[[OpenedImage], Report]) -> bool:
        """Queue the next image of a file, of up to `nbytes`, with the report of `begin`; False if there is none.

        The first image is paid with the file. All others are charged to the API key: this waits while its rate is used
        up, and raises RateLimited. It also waits for the image's permit.
        """
        ...


class Expansion(Protocol):
    """Makes several images of each upload of one request."""

    @property
    def has_lowest_priority(self) -> bool:
        """Whether the images have the lowest priority, and no observer sees them."""
        ...

    @property
    def native_only(self) -> str:
        """The error if another format than the native one is requested."""
        ...

    def applies(self, info: Header) -> bool:
        """Whether an upload becomes several images; if not, it is one image as usual."""
        ...

    def single(self, report: Report) -> Report:
        """The report for an upload that is one image, or has an error."""
        ...

    async def run(self, image: ExpandedUpload) -> None:
        """Make and queue the images of an upload, and report one result of the file.

        Raises ImageError, DeadlineExceeded, or the error that ends the request.
        """
        ...
