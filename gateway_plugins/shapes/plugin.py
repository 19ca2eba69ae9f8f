"""POST /predict as other services have it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from gateway.hooks import AnswerShape, Plugin

if TYPE_CHECKING:
    from gateway.ingest.json_body import ForeignBody


class Shapes(Plugin):
    """The response formats of other services, and the JSON body of Hugging Face."""

    def shapes(self) -> Mapping[str, AnswerShape]:
        """See Plugin.shapes."""
        from gateway_plugins.shapes.shapes import SHAPES

        return SHAPES

    def json_bodies(self) -> "Sequence[ForeignBody]":
        """See Plugin.json_bodies."""
        from gateway_plugins.shapes.huggingface_body import HuggingFaceBody

        return (HuggingFaceBody(),)

    def document(self, schema: dict[str, Any]) -> None:
        """Mention the body of Hugging Face."""
        for operations in schema["paths"].values():
            operation = operations.get("post", {})
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if "images" in content.get("schema", {}).get("properties", {}):
                operation["requestBody"] = body = deepcopy(operation["requestBody"])  # all applications share it
                body["content"]["application/json"]["schema"]["description"] += (
                    " Hugging Face's `inputs` and `parameters` are accepted, too."
                )
