"""JSON bodies with images in base64 or by URL, and the body of Hugging Face's Inference API.

    {"images": [{"b64": "…", "filename": "cat.jpg"}, {"url": "https://…"}]}
    {"inputs": "…", "parameters": {"top_k": 5}}

huggingface_hub's InferenceClient.image_classification sends the second one as soon as there are parameters, and
otherwise the raw image.
"""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any

from gateway.errors import InvalidParameter, NoFiles, UnknownField
from gateway.ingest.json_text import invalid, read_base64, read_json, short_text
from gateway.ingest.upload import (
    Hold,
    Parameter,
    Upload,
    UploadLimits,
    UploadReference,
    clean_filename,
)

EXAMPLE = '{"images": [{"b64": "…"}]}'
HUGGING_FACE = "huggingface"
"""The format of the response to a body of Hugging Face."""


def _schema(member: str, text_format: str, description: str) -> dict[str, Any]:
    """The schema of an image that is given by a member."""
    given = {"type": "string", "format": text_format, "description": description}
    return {
        "type": "object",
        "required": [member],
        "additionalProperties": False,
        "properties": {member: given, "filename": {"type": "string"}},
    }


IN_BASE64 = _schema("b64", "byte", "The image in base64.")
BY_URL = _schema("url", "uri", "Where the image is, if the service fetches images.")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Images in base64 or by URL.",
    "required": ["images"],
    "additionalProperties": False,
    "properties": {
        "images": {"type": "array", "minItems": 1, "items": {"anyOf": [IN_BASE64, BY_URL]}},
    },
}
"""The schema of a body in the OpenAPI document."""


async def read_images(
    chunks: AsyncIterable[bytes], limits: UploadLimits, names: Sequence[str], hold: Hold, *, urls: bool
) -> AsyncIterator[Upload | UploadReference | Parameter]:
    """Read JSON as a whole, and decode one image after the other: see BodyReader.

    Bad base64 and an image beyond `max_file_bytes` are that image's error.

    Raises InvalidBody, UnknownField, InvalidParameter, NoFiles, TooManyFiles or RequestTooLarge.
    """
    body = await read_json(chunks, limits, hold)
    if not isinstance(body, dict):
        raise invalid(f"it must be an object, such as {EXAMPLE}")
    if body.keys() & {"inputs", "parameters"} and {"top_k", "format"} <= set(names):
        for parameter in _hugging_face(body):
            yield parameter
        images: list[Any] = [{"b64": body.pop("inputs")}]
    else:
        images = _images(body, names)
    if len(images) > limits.max_files:
        raise limits.too_many_files()
    left = sum(len(each["b64"]) for each in images if isinstance(each, dict) and isinstance(each.get("b64"), str))
    images.reverse()
    for index in range(len(images)):
        image = _checked(images.pop(), index, urls=urls)
        filename = clean_filename(short_text(image.get("filename") or "", "a file name"))
        if "url" in image:
            yield UploadReference(index, filename, short_text(image["url"], "a URL"))
            continue
        left -= len(image["b64"])
        yield Upload(index, filename, *await read_base64(image.pop("b64"), limits, hold, left))
        hold(left)


def _images(body: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """The images of a body of the gateway's own form; raises InvalidBody, NoFiles or UnknownField."""
    for name in body:
        if name in names:
            raise UnknownField(f'{name!r} goes in the query, such as ?{name}=…; the body has "images" alone.')
        if name != "images":
            raise UnknownField(f"{name[:80]!r} is not a member of the body: send {EXAMPLE}.")
    images = body.pop("images", None)
    if not isinstance(images, list):
        raise invalid(f"it has no array of images; send {EXAMPLE}")
    if not images:
        raise NoFiles(f"The body has no images: send at least one, such as {EXAMPLE}.")
    return images


def _checked(image: object, index: int, *, urls: bool) -> dict[str, Any]:
    """An image with either b64, a string, or url; raises InvalidBody or UnknownField."""
    if not isinstance(image, dict):
        raise invalid('each image must be an object, such as {"b64": "…"}')
    if "url" in image and not urls:
        raise UnknownField(f'Image {index} has a "url", but this service fetches no images: send "b64" instead.')
    if image.keys() - {"b64", "url", "filename"}:
        known = '"b64" or "url", and "filename"' if urls else '"b64" and "filename"'
        raise UnknownField(f"Image {index} has an unknown member: an image has {known}.")
    if "url" in image and "b64" in image:
        raise invalid(f"image {index} has both b64 and url")
    if "url" not in image and not isinstance(image.get("b64"), str):
        raise invalid(f"image {index} has no b64, a string")
    return image


def _hugging_face(body: dict[str, Any]) -> list[Parameter]:
    """The parameters of a body of Hugging Face, among them the format of the response."""
    for name in body:
        if name not in ("inputs", "parameters"):
            raise UnknownField(f"The body's only members are inputs and parameters, not {name[:80]!r}.")
    if not isinstance(body.get("inputs"), str):
        raise invalid("inputs must be a string, the image in base64")
    parameters = body.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise invalid("parameters must be an object")
    if unknown := parameters.keys() - {"top_k"}:
        raise InvalidParameter(f"{min(unknown)[:80]!r} is not a parameter: there is only top_k.")
    given = [Parameter(name, str(each)[:80]) for name, each in parameters.items() if each is not None]
    return [Parameter("format", HUGGING_FACE), *given]
