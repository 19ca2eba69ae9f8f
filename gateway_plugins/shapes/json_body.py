"""JSON bodies with images in base64 or by URL.

    {"images": [{"b64": "…", "filename": "cat.jpg"}, {"url": "https://…"}]}

POST /predict also takes the body of Hugging Face; see gateway_plugins.shapes.huggingface_body.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Sequence
from typing import Any

from gateway.errors import ImageError, NoFiles, UnknownField
from gateway.ingest.media_types import BodyReader, Form
from gateway.ingest.upload import (
    Hold,
    Limits,
    Parameter,
    Upload,
    UploadReference,
    clean_filename,
    too_many_files,
    uncounted,
)
from gateway_plugins.shapes import huggingface_body
from gateway_plugins.shared.base64_stream import read_base64
from gateway_plugins.shared.json_source import JsonSource, invalid

EXAMPLE = '{"images": [{"b64": "…"}]}'
NO_IMAGES = 'The body has no images: send at least one, such as {"images": [{"b64": "…"}]}.'
IMAGE_IN_BASE64: dict[str, Any] = {
    "type": "object",
    "required": ["b64"],
    "additionalProperties": False,
    "properties": {
        "b64": {"type": "string", "format": "byte", "description": "The image in base64."},
        "filename": {"type": "string"},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Images in base64.",
    "required": ["images"],
    "additionalProperties": False,
    "properties": {"images": {"type": "array", "minItems": 1, "items": IMAGE_IN_BASE64}},
}
"""The schema of a body in the OpenAPI document."""


class JsonBody(BodyReader):
    """Reads JSON; base64 is decoded as it arrives, so that at most the bytes of one image are held."""

    parameters = huggingface_body.PARAMETERS

    def read(
        self, chunks: AsyncIterable[bytes], limits: Limits, names: Sequence[str], hold: Hold, *, urls: bool
    ) -> AsyncIterator[Upload | UploadReference | Parameter]:
        """See BodyReader and `read_json`."""
        return read_json(chunks, limits, names, hold, urls=urls)

    def settle(self, form: Form, query: Collection[str]) -> Callable[[str, bool], None] | None:
        """See BodyReader and huggingface_body."""
        return huggingface_body.settle(form, query)


async def read_json(
    chunks: AsyncIterable[bytes],
    limits: Limits,
    names: Sequence[str],
    hold: Hold = uncounted,
    *,
    urls: bool = False,
) -> AsyncIterator[Upload | UploadReference | Parameter]:
    """Yield the parameters and the images of a body, in order, each as soon as it is complete.

    `names` are the parameters that it may have, and `urls` is whether images may be URLs. Bad base64 and an image
    beyond `max_file_bytes` are that image's error. Raises InvalidBody, UnknownField, InvalidParameter, NoFiles,
    TooManyFiles or RequestTooLarge, after the images before the fault.
    """
    source = JsonSource(chunks, limits)
    symbol = await source.symbol()
    if symbol == b"":
        raise invalid("it is empty")
    if symbol != b"{":
        raise invalid(f"it must be an object, such as {EXAMPLE}")
    members = source.members(counted=False)
    name = await anext(members, None)
    if name is None:
        raise invalid(f"it has no images; send {EXAMPLE}")
    if name in huggingface_body.MEMBERS and set(huggingface_body.PARAMETERS) <= set(names):
        for part in await huggingface_body.read(source, name, members, limits, hold):
            yield part
        hold(0)
        await source.expect_end()
        return
    if name in names:
        raise UnknownField(f'{name!r} goes in the query, such as ?{name}=…; the body has "images" alone.')
    if name != "images":
        raise UnknownField(f"{name[:80]!r} is not a member of the body: send {EXAMPLE}.")
    await source.expect(b"[", "images must be an array")
    index = -1
    async for index in source.elements("images"):
        if index == limits.max_files:
            raise too_many_files(limits)
        yield await _read_image(source, index, limits, hold, urls=urls)
        hold(0)
    async for _ in members:
        raise UnknownField('The body has nothing beside "images"; parameters go in the query.')
    await source.expect_end()
    if index < 0:
        raise NoFiles(NO_IMAGES)


async def _read_image(
    source: JsonSource, index: int, limits: Limits, hold: Hold, *, urls: bool
) -> Upload | UploadReference:
    await source.expect(b"{", 'each image must be an object, such as {"b64": "…"}')
    image: tuple[bytes, ImageError | None] | None = None
    filename: str | None = None
    url: str | None = None
    async for name in source.members(counted=False):
        if name == "b64" and image is None:
            await source.expect(b'"', "b64 must be a string")
            image = await read_base64(source, limits, hold)
        elif name == "filename" and filename is None:
            filename = await source.text_or_null()
        elif name == "url" and not urls:
            raise UnknownField(f'Image {index} has a "url", but this service fetches no images: send "b64" instead.')
        elif name == "url" and url is None:
            await source.expect(b'"', "url must be a string")
            url = await source.text()
        elif name in ("b64", "filename", "url"):
            raise invalid(f"image {index} has two members {name}")
        else:
            known = '"b64" or "url", and "filename"' if urls else '"b64" and "filename"'
            raise UnknownField(f"Image {index} has an unknown member: an image has {known}.")
    if url is not None:
        if image is not None:
            raise invalid(f"image {index} has both b64 and url")
        return UploadReference(index, clean_filename(filename or ""), url)
    if image is None:
        raise invalid(f"image {index} has no b64")
    return Upload(index, clean_filename(filename or ""), *image)
