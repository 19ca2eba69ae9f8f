"""JSON bodies, and POST /predict as other services have it."""

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from gateway.hooks import AnswerShape, Plugin

if TYPE_CHECKING:
    from gateway.ingest.upload import BodyReader


class Shapes(Plugin):
    """JSON bodies, including Hugging Face's, and the response formats of other services."""

    def shapes(self) -> Mapping[str, AnswerShape]:
        """See Plugin.shapes."""
        from gateway.plugins.shapes.shapes import SHAPES

        return SHAPES

    def body_readers(self) -> "Mapping[str, BodyReader]":
        """See Plugin.body_readers."""
        from gateway.plugins.shapes.json_body import read_images

        return {"application/json": read_images}

    def document(self, schema: dict[str, Any]) -> None:
        """Declare JSON wherever a raw image may be sent."""
        from gateway.plugins.shapes.json_body import SCHEMA

        for path, operations in schema["paths"].items():
            operation = operations.get("post", {})
            content = operation.get("requestBody", {}).get("content", {})
            if "image/*" in content and "application/json" not in content:
                operation["requestBody"] = body = deepcopy(operation["requestBody"])  # all applications share it
                json_schema = deepcopy(SCHEMA)
                if path == "/predict":
                    json_schema["description"] += " Hugging Face's `inputs` and `parameters` are accepted, too."
                body["content"]["application/json"] = {"schema": json_schema}
