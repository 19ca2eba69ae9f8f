"""The interface of a response format of POST /predict."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # plug-ins that have formats are loaded by commands that classify nothing
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

    @abstractmethod
    def around(self, results: "Sequence[Result]", spec: "RequestSpec") -> tuple[bytes, bytes]:
        """The bytes before and after the items."""
