"""The parts of a body: files and parameters, as they were sent; their limits; readers of more media types."""

import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Protocol

from gateway.errors import (
    FileTooLarge,
    ImageError,
    Overloaded,
    RequestTooLarge,
    TooManyFiles,
)
from gateway.values.quantities import size
from gateway.values.variables import DecodeMode

if TYPE_CHECKING:
    from gateway.settings import Settings

MAX_FILENAME_CHARACTERS = 255

Hold = Callable[[int], None]
"""Called with the number of bytes of a body that its reader holds, whenever that changes; may raise."""

# C0 and C1 controls, line separators, lone surrogates, and marks that change the reading direction: with each of them
# a name can look like another one in a log or a list.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_SEPARATORS = re.compile(r"[/\\]")


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """The limits of one request and its files; each field is the setting of the same name."""

    decode: DecodeMode
    max_files: int
    max_file_bytes: int
    max_request_bytes: int
    max_image_pixels: int

    @classmethod
    def from_settings(cls, settings: "Settings") -> "UploadLimits":
        """The limits of the settings."""
        return cls(**{each.name: getattr(settings, each.name) for each in fields(cls)})

    def file_too_large(self) -> FileTooLarge:
        """The error of a file beyond `max_file_bytes`."""
        most = self.max_file_bytes
        message = f"The file has more than {size(most)}: scale the image down."
        return FileTooLarge(message, limit="max_file_bytes", value=most)

    def too_many_files(self) -> TooManyFiles:
        """The error of a request beyond `max_files`."""
        most = self.max_files
        message = f"The request has more than {most:,} files: send them in several requests."
        return TooManyFiles(message, limit="max_files", value=most)

    def request_too_large(self) -> RequestTooLarge:
        """The error of a body beyond `max_request_bytes`."""
        most = self.max_request_bytes
        message = f"The request has more than {size(most)}: send fewer or smaller files."
        return RequestTooLarge(message, limit="max_request_bytes", value=most)


@dataclass(slots=True)
class Upload:
    """One uploaded file.

    `index` counts the files of the request from 0, `filename` is a cleaned label and never a path ("" if the client
    gave none). With `error` set, `data` is empty and the error is the file's result.
    """

    index: int
    filename: str
    data: bytes = field(repr=False)
    error: ImageError | Overloaded | None = None


@dataclass(frozen=True, slots=True)
class UploadReference:
    """A file of a request that is to be fetched: see gateway.plugins.urls. Its URL is the client's, unchecked."""

    index: int
    filename: str
    """Empty if the client gave none."""
    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A form field that is not a file, or a parameter in a JSON body."""

    name: str
    value: str


Uploads = AsyncGenerator[Upload, None]
"""The uploads of one request as they arrive; the reader closes it."""
UploadsOrUrls = AsyncGenerator[Upload | UploadReference, None]
"""The images of one request as they arrive, of which some are to be fetched."""
Form = dict[str, list[str]]
"""The values of each parameter in a body."""


class BodyReader(Protocol):
    """A function that reads bodies of one more media type, for all routes that take images."""

    def __call__(
        self, chunks: AsyncIterable[bytes], limits: UploadLimits, names: Sequence[str], hold: Hold, *, urls: bool
    ) -> AsyncIterator[Upload | UploadReference | Parameter]:
        """Yield the parameters, which are among `names`, then each image as soon as it is complete.

        `urls` is whether images may be URLs. Raises NoFiles, and other errors of the request.
        """


def uncounted(nbytes: int) -> None:
    """Default `Hold`: does nothing."""


def clean_filename(raw: str) -> str:
    """The last component of a client's file name, without control characters, at most 255 characters."""
    name = _UNPRINTABLE.sub("", _SEPARATORS.split(raw.rstrip("/\\"))[-1])
    return name.strip()[:MAX_FILENAME_CHARACTERS]
