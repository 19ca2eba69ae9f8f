"""JSON bodies with images in base64 or by URL.

    {"images": [{"b64": "…", "filename": "cat.jpg"}, {"url": "https://…"}]}

Plug-ins may read the bodies of other services; see ForeignBody.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Sequence
from typing import ClassVar

from gateway.errors import ImageError, InvalidImage, UnknownField
from gateway.ingest.base64_stream import Base64Decoder
from gateway.ingest.json_source import JsonSource, invalid
from gateway.ingest.upload import (
    Hold,
    Limits,
    Parameter,
    Upload,
    UploadReference,
    clean_filename,
    file_too_large,
    too_many_files,
    uncounted,
)

EXAMPLE = '{"images": [{"b64": "…"}]}'
Form = dict[str, list[str]]
"""The values of each parameter in a body."""


class ForeignBody(ABC):
    """The JSON body of another service, recognised by the name of its first member."""

    members: ClassVar[Collection[str]]
    """Names that the first member may have."""
    parameters: ClassVar[Sequence[str]]
    """Parameters that the body may have."""

    @abstractmethod
    async def read(
        self, source: JsonSource, first: str, members: AsyncIterator[str], limits: Limits, hold: Hold
    ) -> Sequence[Upload | Parameter]:
        """The parameters, then the images of a body whose first member's name was read.

        `members` are the names of the others, each of which is to be read before the next one. Raises InvalidBody,
        UnknownField or InvalidParameter.
        """

    @abstractmethod
    def settle(self, form: Form, query: Collection[str]) -> Callable[[str, bool], None] | None:
        """Remove from the parameters of a body those that the route does not have.

        `query` are the names of the parameters in the query. Returns a check of the removed ones, or None; it gets the
        name of the model and whether it is multi-label, and raises InvalidParameter.
        """


async def read_json(
    chunks: AsyncIterable[bytes],
    limits: Limits,
    names: Sequence[str],
    hold: Hold = uncounted,
    *,
    urls: bool = False,
    foreign: Sequence[ForeignBody] = (),
) -> AsyncIterator[Upload | UploadReference | Parameter]:
    """Yield the parameters and the images of a body, in order, each as soon as it is complete.

    `names` are the route's parameters, `urls` is whether images may be URLs, and `foreign` are other forms of bodies.
    Base64 is decoded as it arrives, so that at most the bytes of one image are held. Bad base64 and an image beyond
    `max_file_bytes` are that image's error. Raises InvalidBody, UnknownField, InvalidParameter, TooManyFiles or
    RequestTooLarge, after the images before the fault.
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
    other = next((each for each in foreign if name in each.members), None)
    if other is not None:
        for part in await other.read(source, name, members, limits, hold):
            yield part
        hold(0)
    elif name in names:
        raise UnknownField(f'{name!r} goes in the query, such as ?{name}=…; the body has "images" alone.')
    elif name != "images":
        raise UnknownField(f"{name[:80]!r} is not a member of the body: send {EXAMPLE}.")
    else:
        await source.expect(b"[", "images must be an array")
        async for index in source.elements("images"):
            if index == limits.max_files:
                raise too_many_files(limits)
            yield await _read_image(source, index, limits, hold, urls=urls)
            hold(0)
        async for _ in members:
            raise UnknownField('The body has nothing beside "images"; parameters go in the query.')
    await source.expect_end()


async def read_base64(source: JsonSource, limits: Limits, hold: Hold = uncounted) -> tuple[bytes, ImageError | None]:
    """Read an image in base64, after the opening quote of its string: its bytes, or b"" and what is wrong with it."""
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
