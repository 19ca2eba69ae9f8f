"""A body of any media type that is taken, as uploads while it arrives."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence

from gateway.errors import InvalidParameter, NoFiles, UnknownField, UnsupportedMediaType
from gateway.ingest.huggingface import MEMBERS, read_huggingface
from gateway.ingest.json_source import JsonSource
from gateway.ingest.multipart import Parameter, read_multipart
from gateway.ingest.raw_and_json import first_member, read_body, read_images
from gateway.ingest.upload import Hold, Upload, file_too_large, request_too_large, uncounted
from gateway.ingest.upload_limits import Limits
from gateway.near import TOLD_CHARACTERS, near

Uploads = AsyncGenerator[Upload, None]
"""The uploads of one request as they arrive; closed by who reads them."""
Form = dict[str, list[str]]
"""The values of each parameter that a body brings."""

NO_FILES = "The request has no files: send them as multipart/form-data, such as curl -F files=@cat.jpg."
NO_IMAGES = 'The body has no images: send at least one, such as {"images": [{"b64": "…"}]}.'
HUGGINGFACE = "huggingface"
"""The format of an answer to a body in Hugging Face's shape; see gateway.api.shapes."""


async def open_uploads(
    content_type: str,
    announced_bytes: int,
    chunks: AsyncIterable[bytes],
    limits: Limits,
    names: Sequence[str],
    hold: Hold = uncounted,
) -> tuple[Form, Uploads]:
    """Read up to the first file: the form's parameters, of which there are `names`, and the uploads as they arrive.

    Raises UnsupportedMediaType, and what the readers of these types raise, without reading a body that announces
    itself as too large; so does the iterator, which also raises NoFiles at the end of a body without one.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    raw = media_type.startswith("image/") or media_type == "application/octet-stream"
    if not raw and media_type not in {"multipart/form-data", "application/json"}:
        raise UnsupportedMediaType(
            f"Send multipart/form-data with files, one raw image as image/*, or application/json; not "
            f"{media_type[:80]!r}."
            if media_type
            else "The request has no Content-Type: send multipart/form-data with files, or one raw image as image/*."
        )
    if raw and announced_bytes > limits.max_file_bytes:
        raise file_too_large(limits)
    if announced_bytes > limits.max_request_bytes:
        raise request_too_large(limits)
    if raw:
        return {}, at_least_one(_one(chunks, limits, hold))
    if media_type == "application/json":
        return await _json(chunks, limits, names, hold)
    return await _split(read_multipart(chunks, content_type, limits, hold), names)


async def _json(chunks: AsyncIterable[bytes], limits: Limits, names: Sequence[str], hold: Hold) -> tuple[Form, Uploads]:
    source = JsonSource(chunks, limits)
    name = await first_member(source)
    if name not in MEMBERS:
        if name in names:
            raise UnknownField(f'{name!r} goes in the query, such as ?{name}=…; the body has "images" alone.')
        return {}, at_least_one(read_images(source, name, limits, hold), NO_IMAGES)
    form, upload = await read_huggingface(source, name, limits, hold)
    if "labels" not in names:
        raise UnknownField('Hugging Face\'s \'inputs\' is for POST /predict: send {"images": [{"b64": "…"}]}.')
    # Whoever asks in Hugging Face's shape wants the answer in it.
    return {"format": [HUGGINGFACE], **form}, at_least_one(resumed(upload, _nothing()))


async def _nothing() -> AsyncIterator[Upload]:
    none: tuple[Upload, ...] = ()
    for upload in none:
        yield upload


async def _split(parts: AsyncIterator[Upload | Parameter], names: Sequence[str]) -> tuple[Form, Uploads]:
    parameters: Form = {}
    async for part in parts:
        if isinstance(part, Upload):
            return parameters, at_least_one(resumed(part, _files(parts)))
        if part.name not in names:
            hint = near(part.name, names) or "a file has one, such as curl -F files=@cat.jpg."
            raise UnknownField(
                f"The form field {part.name[:TOLD_CHARACTERS]!r} has no file name and is not a parameter; {hint} "
                f"Parameters are {', '.join(names)}."
            )
        parameters.setdefault(part.name, []).append(part.value)
    raise NoFiles(NO_FILES)


async def resumed(first: Upload, rest: AsyncIterator[Upload]) -> AsyncGenerator[Upload, None]:
    """Uploads of which the first was read before."""
    yield first
    async for upload in rest:
        yield upload


async def _files(rest: AsyncIterator[Upload | Parameter]) -> AsyncIterator[Upload]:
    async for part in rest:
        if isinstance(part, Parameter):
            raise InvalidParameter(f"The form field {part.name!r} must come before the first file.")
        yield part


async def _one(chunks: AsyncIterable[bytes], limits: Limits, hold: Hold) -> AsyncIterator[Upload]:
    yield Upload(0, "", await read_body(chunks, limits, hold), None)
    hold(0)


async def at_least_one(uploads: AsyncIterator[Upload], no_files: str = NO_FILES) -> AsyncGenerator[Upload, None]:
    """Uploads; raises NoFiles where there are none."""
    empty = True
    async for upload in uploads:
        empty = False
        yield upload
    if empty:
        raise NoFiles(no_files)
