"""The interface of a response format of POST /predict, and the base of other services' formats."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_core import to_json

if TYPE_CHECKING:  # plug-ins that have formats are loaded by commands that classify nothing
    from gateway.errors import GatewayError
    from gateway.inference.request_spec import RequestSpec
    from gateway.inference.result import Result


class AnswerShape(ABC):
    """A response format of POST /predict: how to write each file's result, and the bytes around the results."""

    documents: ClassVar[Any] = str
    """The response schema, a pydantic model or a union of them, for the OpenAPI page; str for text."""
    media_type: ClassVar[str] = "application/json"
    separator: ClassVar[bytes] = b","
    """Bytes between two items."""
    shows_a_lone_error: ClassVar[bool] = False
    """Whether the error of a single file is a result like others; else the response is a problem document."""

    @abstractmethod
    def item(self, result: "Result", spec: "RequestSpec") -> object:
        """Convert one file's result or error to plain data for JSON, or to bytes, which are sent as they are."""

    def written(self, result: "Result", spec: "RequestSpec") -> bytes:
        """The bytes of an item."""
        item = self.item(result, spec)
        return item if isinstance(item, bytes) else to_json(item, inf_nan_mode="null")

    @abstractmethod
    def around(self, results: "Sequence[Result]", spec: "RequestSpec") -> tuple[bytes, bytes]:
        """The bytes before and after the items."""


class Foreign(AnswerShape):
    """The format of another service: one object for a single file, as from that service, and a list for several."""

    shows_a_lone_error = False

    def item(self, result: "Result", spec: "RequestSpec") -> object:  # noqa: ARG002
        """The result, or the file's error."""
        return self.result(result) if result.error is None else self.error(result.error)

    def around(self, results: "Sequence[Result]", spec: "RequestSpec") -> tuple[bytes, bytes]:  # noqa: ARG002
        """The brackets of a list, or nothing for a single file."""
        return (b"[", b"]") if len(results) > 1 else (b"", b"")

    @abstractmethod
    def result(self, result: "Result") -> object:
        """The classes of one image."""

    @abstractmethod
    def error(self, error: "GatewayError") -> object:
        """The error of one file."""
