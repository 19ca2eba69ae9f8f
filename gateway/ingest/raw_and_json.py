"""Bodies other than multipart: one raw image, or JSON with images in base64."""

from collections.abc import AsyncIterable, AsyncIterator

from gateway.errors import ImageError, InvalidImage, UnknownField
from gateway.ingest.base64_stream import Base64Decoder
from gateway.ingest.json_source import JsonSource, invalid
from gateway.ingest.upload import Hold, Upload, clean_filename, file_too_large, too_many_files, uncounted
from gateway.ingest.upload_limits import Limits

EXAMPLE = '{"images": [{"b64": "…"}]}'


async def read_body(chunks: AsyncIterable[bytes], limits: Limits, hold: Hold = uncounted) -> bytes:
    """One raw image; raises FileTooLarge beyond `max_file_bytes`, as the error of the whole request."""
    body = bytearray()
    async for chunk in chunks:
        if len(body) + len(chunk) > limits.max_file_bytes:
            raise file_too_large(limits)
        body += chunk
        hold(len(body))
    return bytes(body)


async def read_json(chunks: AsyncIterable[bytes], limits: Limits, hold: Hold = uncounted) -> AsyncIterator[Upload]:
    """Yield the images of `{"images": [{"b64": "…", "filename": "…"}]}`, in order, each as soon as it is complete.

    Base64 is decoded as it arrives, so that of an image there is never more than its own bytes. Bad base64 and an image
    beyond `max_file_bytes` are that image's error. Raises InvalidBody, UnknownField, TooManyFiles or RequestTooLarge,
    after the images before the fault.
    """
    source = JsonSource(chunks, limits)
    async for upload in read_images(source, await first_member(source), limits, hold):
        yield upload


async def first_member(source: JsonSource) -> str:
    """The name of the first member of a body, which shows what kind of body it is."""
    symbol = await source.symbol()
    if symbol == b"":
        raise invalid("it is empty")
    if symbol != b"{":
        raise invalid(f"it must be an object, such as {EXAMPLE}")
    if await source.symbol() == b"}":
        raise invalid(f"it has no images; send {EXAMPLE}")
    source.push_back()
    return await source.name()


async def read_images(source: JsonSource, name: str, limits: Limits, hold: Hold = uncounted) -> AsyncIterator[Upload]:
    """What `read_json` yields, of a body whose first member's name was read."""
    if name != "images":
        raise UnknownField(f"{name[:80]!r} is not a member of the body: send {EXAMPLE}.")
    await source.expect(b"[", "images must be an array")
    async for index in source.elements("images"):
        if index == limits.max_files:
            raise too_many_files(limits)
        yield await _read_image(source, index, limits, hold)
        hold(0)
    if await source.symbol() == b",":
        raise UnknownField('The body has nothing beside "images"; parameters go in the query.')
    source.push_back()
    await source.expect(b"}", "the object must end after images")
    if await source.symbol() != b"":
        raise invalid("there is something after the object")


async def _read_image(source: JsonSource, index: int, limits: Limits, hold: Hold) -> Upload:
    await source.expect(b"{", 'each image must be an object, such as {"b64": "…"}')
    data: bytes | None = None
    error: ImageError | None = None
    filename: str | None = None
    if await source.symbol() == b"}":
        raise invalid(f"image {index} has no b64")
    source.push_back()
    while True:
        name = await source.name()
        if name == "b64" and data is None:
            await source.expect(b'"', "b64 must be a string")
            data, error = await read_base64(source, limits, hold)
        elif name == "filename" and filename is None:
            filename = await source.text_or_null()
        elif name in ("b64", "filename"):
            raise invalid(f"image {index} has two members {name}")
        else:
            raise UnknownField(f'Image {index} has an unknown member: an image has "b64" and "filename".')
        symbol = await source.symbol()
        if symbol == b"}":
            break
        if symbol != b",":
            raise invalid("members must be separated by commas")
    if data is None:
        raise invalid(f"image {index} has no b64")
    return Upload(index, clean_filename(filename or ""), data, error)


async def read_base64(source: JsonSource, limits: Limits, hold: Hold = uncounted) -> tuple[bytes, ImageError | None]:
    """An image in base64, after the opening quote of its string: its bytes, or b"" and what is wrong with it."""
    decoder = Base64Decoder(limits.max_file_bytes)
    async for piece in source.string_pieces():
        decoder.write(piece)
        hold(len(decoder.data))
    decoder.finish()
    if decoder.too_large:
        return b"", file_too_large(limits)
    if decoder.invalid:
        return b"", InvalidImage("The image is not base64.")
    return bytes(decoder.data), None
