"""The JSON body of Hugging Face's Inference API.

    {"inputs": "…", "parameters": {"top_k": 5, "function_to_apply": "softmax"}}

huggingface_hub's InferenceClient.image_classification sends it as soon as there are parameters, and otherwise the raw
image.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial

from gateway.errors import InvalidParameter, UnknownField
from gateway.ingest.media_types import Form
from gateway.ingest.upload import Hold, Limits, Parameter, Upload
from gateway_plugins.shared.base64_stream import read_base64
from gateway_plugins.shared.json_source import JsonSource, invalid

FORMAT = "huggingface"
"""The format of the response."""
PARAMETERS = ("top_k", "function_to_apply")
MEMBERS = ("inputs", "parameters")
"""Names that the first member may have."""


async def read(
    source: JsonSource, first: str, members: AsyncIterator[str], limits: Limits, hold: Hold
) -> Sequence[Upload | Parameter]:
    """The parameters, among them the format of the response, then the image of a body whose first name was read.

    `members` are the names of the others, each of which is to be read before the next one. Raises InvalidBody,
    UnknownField or InvalidParameter.
    """
    parameters: list[Upload | Parameter] = [Parameter("format", FORMAT)]
    upload: Upload | None = None
    seen: set[str] = set()
    name: str | None = first
    while name is not None:
        if name in seen:
            raise invalid(f"there are two members {name}")
        seen.add(name)
        if name == "inputs":
            await source.expect(b'"', "inputs must be a string, the image in base64")
            upload = Upload(0, "", *await read_base64(source, limits, hold))
        elif name == "parameters":
            parameters += _parameters(await source.value())
        else:
            raise UnknownField(f"Beside inputs, the body's only member is parameters, not {name[:80]!r}.")
        name = await anext(members, None)
    if upload is None:
        raise invalid("inputs is missing")
    return [*parameters, upload]


def settle(form: Form, query: Collection[str]) -> Callable[[str, bool], None] | None:
    """Remove `function_to_apply`, which must be what the model ends in, and the format if the query has one.

    The format that the body implies is only a default. Returns a check of the function; see BodyReader.settle.
    """
    if form.get("format", [])[-1:] == [FORMAT] and "format" in query:
        del form["format"]
    function = form.pop("function_to_apply", [])
    return partial(_check_function, function[-1]) if function else None


def _check_function(function: str, model_name: str, multi_label: bool) -> None:  # noqa: FBT001  # called by position
    ends_in = "sigmoid" if multi_label else "softmax"
    if function != ends_in:
        raise InvalidParameter(
            f"'function_to_apply': {model_name!r} ends in {ends_in}, and its scores are returned unchanged; "
            f"leave it out, or send {ends_in!r}."
        )


def _parameters(value: object) -> list[Parameter]:
    if value is None:
        return []
    if not isinstance(value, dict):
        raise invalid("parameters must be an object")
    unknown = value.keys() - set(PARAMETERS)
    if unknown:
        names = " and ".join(PARAMETERS)
        raise InvalidParameter(f"{min(unknown)[:80]!r} is not a parameter: there are {names}.")
    return [Parameter(name, str(each)) for name, each in value.items() if each is not None]
