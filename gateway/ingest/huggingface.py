"""The JSON body of Hugging Face's Inference API for image classification.

    {"inputs": "<base64>", "parameters": {"top_k": 5, "function_to_apply": "softmax"}}

Source: huggingface_hub's InferenceClient.image_classification, which sends it as soon as there are parameters, and the
raw image where there are none.
"""

from gateway.errors import InvalidParameter, UnknownField
from gateway.ingest.json_source import JsonSource, invalid
from gateway.ingest.raw_and_json import read_base64
from gateway.ingest.upload import Hold, Upload, uncounted
from gateway.ingest.upload_limits import Limits

MEMBERS = ("inputs", "parameters")
PARAMETERS = ("top_k", "function_to_apply")


async def read_huggingface(
    source: JsonSource, name: str, limits: Limits, hold: Hold = uncounted
) -> tuple[dict[str, list[str]], Upload]:
    """The parameters as they would stand in a form, and the image, of a body whose first member's name was read.

    Raises InvalidBody, UnknownField and InvalidParameter; bad base64 is the image's own error.
    """
    form: dict[str, list[str]] = {}
    upload: Upload | None = None
    seen: set[str] = set()
    while True:
        if name in seen:
            raise invalid(f"there are two members {name}")
        seen.add(name)
        if name == "inputs":
            await source.expect(b'"', "inputs must be a string, the image in base64")
            upload = Upload(0, "", *await read_base64(source, limits, hold))
        elif name == "parameters":
            form = _form(await source.value())
        else:
            raise UnknownField(f"Beside inputs, the body's only member is parameters, not {name[:80]!r}.")
        symbol = await source.symbol()
        if symbol == b"}":
            break
        if symbol != b",":
            raise invalid("members must be separated by commas")
        name = await source.name()
    if await source.symbol() != b"":
        raise invalid("there is something after the object")
    if upload is None:
        raise invalid("inputs is missing")
    return form, upload


def _form(parameters: object) -> dict[str, list[str]]:
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise invalid("parameters must be an object")
    unknown = parameters.keys() - set(PARAMETERS)
    if unknown:
        raise InvalidParameter(f"{min(unknown)[:80]!r} is not a parameter: there are {' and '.join(PARAMETERS)}.")
    return {name: [str(value)] for name, value in parameters.items() if value is not None}
