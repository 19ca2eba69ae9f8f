"""Reads a body of any accepted media type, as uploads while it arrives."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

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

if TYPE_CHECKING:
    from gateway.ingest.json_body import ForeignBody, Form

Uploads = AsyncGenerator[Upload, None]
"""The uploads of one request as they arrive; the reader closes it."""
UploadsOrUrls = AsyncGenerator[Upload | UploadReference, None]
"""The images of one request as they arrive, of which some are to be fetched."""
Fetch = Callable[[UploadsOrUrls], Uploads]
"""Fetches the images of a request that are URLs."""
U = TypeVar("U", bound=Upload | UploadReference)

NO_FILES = "The request has no files: send them as multipart/form-data, such as curl -F files=@cat.jpg."
NO_IMAGES = 'The body has no images: send at least one, such as {"images": [{"b64": "…"}]}.'


async def open_uploads(
    content_type: str,
    announced_bytes: int,
    chunks: AsyncIterable[bytes],
    limits: Limits,
    names: Sequence[str],
    hold: Hold = uncounted,
    fetch: Fetch | None = None,
    foreign: "Sequence[ForeignBody]" = (),
) -> "tuple[Form, Uploads]":
    """Read a body up to its first file: its parameters, which must be among `names`, and the uploads as they arrive.

    Without `fetch`, images cannot be URLs; `foreign` are further forms of JSON bodies. Raises UnsupportedMediaType,
    NoFiles, and what the reader of the media type raises; so do the uploads. A body is not read if its Content-Length
    exceeds a limit.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    raw = media_type.startswith("image/") or media_type == "application/octet-stream"
    if not raw and media_type not in {"multipart/form-data", "application/json"}:
        raise UnsupportedMediaType(
            f"Send multipart/form-data with files, one raw image as image/*, or application/json; not "
            f"{media_type[:80]!r}{FORM_ADVICE if media_type == FORM else ''}."
            if media_type
            else "The request has no Content-Type: send multipart/form-data with files, or one raw image as image/*: "
            "requests.post(url, files={'files': file})."
        )
    if raw and announced_bytes > limits.max_file_bytes:
        raise file_too_large(limits)
    if announced_bytes > limits.max_request_bytes:
        raise request_too_large(limits)
    if raw:
        return await _split(read_raw(chunks, limits, hold), names, NO_FILES)
    if media_type == "application/json":
        from gateway.ingest.json_body import read_json  # loaded with the first such body

        names = (*names, *(name for each in foreign for name in each.parameters))
        body = read_json(chunks, limits, names, hold, urls=fetch is not None, foreign=foreign)
        form, images = await _split(body, names, NO_IMAGES)
        return form, cast("Uploads", images) if fetch is None else fetch(images)
    return await _split(read_multipart(chunks, content_type, limits, hold, announced_bytes), names, NO_FILES)


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
    yield Upload(0, "", bytes(body))
    hold(0)


async def _split(
    parts: AsyncIterator[U | Parameter], names: Sequence[str], no_files: str
) -> "tuple[Form, AsyncGenerator[U, None]]":
    parameters: Form = {}
    async for part in parts:
        if not isinstance(part, Parameter):
            return parameters, uploads_from(part, parts, names)
        _check_known(part, names)
        parameters.setdefault(part.name, []).append(part.value)
    raise NoFiles(no_files)


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
    async for part in rest:
        if isinstance(part, Parameter):
            if names is not None:
                _check_known(part, names)
            raise InvalidParameter(
                f"The form field {part.name!r} comes after files that are being classified already: send it before "
                f"the first file, or in the query, such as ?{part.name}=…."
            )
        yield part
