"""Reads a body of any accepted media type, as uploads while it arrives."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import ClassVar, TypeVar, cast

from gateway.errors import InvalidParameter, NoFiles, UnknownField, UnsupportedMediaType
from gateway.ingest.multipart import read_multipart
from gateway.ingest.upload import (
    Hold,
    Limits,
    Parameter,
    Upload,
    UploadReference,
    file_too_large,
    request_too_large,
    uncounted,
)
from gateway.values.validation import NAME_CHARACTERS, near

Uploads = AsyncGenerator[Upload, None]
"""The uploads of one request as they arrive; the reader closes it."""
UploadsOrUrls = AsyncGenerator[Upload | UploadReference, None]
"""The images of one request as they arrive, of which some are to be fetched."""
Fetch = Callable[[UploadsOrUrls], Uploads]
"""Fetches the images of a request that are URLs."""
U = TypeVar("U", bound=Upload | UploadReference)

Form = dict[str, list[str]]
"""The values of each parameter in a body."""

NO_FILES = "The request has no files: send them as multipart/form-data, such as curl -F files=@cat.jpg."


class BodyReader(ABC):
    """Reads the bodies of a further media type, for all routes that take images."""

    parameters: ClassVar[Sequence[str]] = ()
    """Parameters that a body of POST /predict may have in addition to the route's; `remove_own` removes them."""

    @abstractmethod
    def read(
        self, chunks: AsyncIterable[bytes], limits: Limits, names: Sequence[str], hold: Hold, *, urls: bool
    ) -> AsyncIterator[Upload | UploadReference | Parameter]:
        """Yield the parameters, which are among `names`, then each image as soon as it is complete.

        `urls` is whether images may be URLs. Raises NoFiles, and other errors of the request.
        """

    def remove_own(self, form: Form, query: Collection[str]) -> Callable[[str, bool], None] | None:
        """Remove from the parameters of a body those that POST /predict does not have.

        `query` are the names of the parameters in the query. Returns a check of the removed ones, or None; it gets the
        name of the model and whether it is multi-label, and raises InvalidParameter.
        """
        del form, query
        return None


def media_type_of(content_type: str) -> str:
    """The media type of a Content-Type, in lower case and without parameters."""
    return content_type.partition(";")[0].strip().lower()


NO_READERS: Mapping[str, BodyReader] = {}


async def open_uploads(
    content_type: str,
    announced_bytes: int,
    chunks: AsyncIterable[bytes],
    limits: Limits,
    names: Sequence[str],
    hold: Hold = uncounted,
    fetch: Fetch | None = None,
    readers: Mapping[str, BodyReader] = NO_READERS,
    *,
    with_own: bool = False,
) -> tuple[Form, Uploads]:
    """Read a body up to its first file: its parameters, which must be among `names`, and the uploads as they arrive.

    Without `fetch`, images cannot be URLs. `readers` are for further media types, by those; with `with_own` their
    bodies may also have parameters of theirs, and the caller calls `BodyReader.remove_own`. Raises
    UnsupportedMediaType, NoFiles, and what the reader of the media type raises; so do the uploads. A body is not read
    if its Content-Length exceeds a limit.
    """
    media_type = media_type_of(content_type)
    # A body without a type is an image, too: clients that send bytes or an open file often add none.
    raw = media_type.startswith("image/") or media_type == "application/octet-stream"
    raw = raw or (not content_type and announced_bytes > 0)
    reader = readers.get(media_type)
    if not raw and reader is None and media_type != "multipart/form-data":
        others = "".join(f", or {each}" for each in readers)
        raise UnsupportedMediaType(
            f"Send multipart/form-data with files, one raw image as image/*{others}; not "
            f"{media_type[:80]!r}{FORM_ADVICE if media_type == FORM else ''}."
            if media_type
            else "The request has no Content-Type: send multipart/form-data with files, or one raw image as image/*: "
            "requests.post(url, files={'files': file})."
        )
    if raw and announced_bytes > limits.max_file_bytes:
        raise file_too_large(limits)
    if announced_bytes > limits.max_request_bytes:
        raise request_too_large(limits)
    parts: AsyncIterator[Upload | UploadReference | Parameter]
    if raw:
        parts = read_raw(chunks, limits, hold)
    elif reader is not None:
        names = (*names, *reader.parameters) if with_own else names
        parts = reader.read(chunks, limits, names, hold, urls=fetch is not None)
    else:
        parts = read_multipart(chunks, content_type, limits, hold, announced_bytes)
    parameters: Form = {}
    async for part in parts:
        if not isinstance(part, Parameter):
            images = uploads_from(part, parts, names)
            return parameters, cast("Uploads", images) if fetch is None or reader is None else fetch(images)
        _check_known(part, names)
        parameters.setdefault(part.name, []).append(part.value)
    raise NoFiles(NO_FILES)


FORM = "application/x-www-form-urlencoded"
FORM_ADVICE = ", as curl -d does: write curl -F files=@cat.jpg"


async def read_raw(chunks: AsyncIterable[bytes], limits: Limits, hold: Hold = uncounted) -> Uploads:
    """Yield one raw image; raises FileTooLarge beyond `max_file_bytes`, as the error of the whole request."""
    body = bytearray()
    async for chunk in chunks:
        if len(body) + len(chunk) > limits.max_file_bytes:
            raise file_too_large(limits)
        body += chunk
        hold(len(body))
    data = bytes(body)
    del body
    yield Upload(0, "", data)
    hold(0)


def _check_known(part: Parameter, names: Sequence[str]) -> None:
    if part.name not in names:
        hint = near(part.name, names) or "a file has one, such as curl -F files=@cat.jpg."
        raise UnknownField(
            f"The form field {part.name[:NAME_CHARACTERS]!r} has no file name and is not a parameter; {hint} "
            f"Parameters are {', '.join(names)}."
        )


async def uploads_from(
    first: U, rest: AsyncIterator[U | Parameter], names: Sequence[str] | None = None
) -> AsyncGenerator[U, None]:
    """Yield uploads of which the first was read before.

    Raises InvalidParameter for a parameter between them, and UnknownField for one that is not in `names`.
    """
    yield first
    del first  # as each part below: nothing counts its bytes while the next one arrives
    async for part in rest:
        if isinstance(part, Parameter):
            if names is not None:
                _check_known(part, names)
            raise InvalidParameter(
                f"The form field {part.name!r} comes after files that are being classified already: send it before "
                f"the first file, or in the query, such as ?{part.name}=…."
            )
        yield part
        del part
