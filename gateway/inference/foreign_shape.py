"""The base of other services' response formats."""

from abc import abstractmethod
from collections.abc import Sequence

from gateway.errors import GatewayError
from gateway.inference.answer_shape import AnswerShape
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result


class Foreign(AnswerShape):
    """The format of another service: one object for a single file, as from that service, and a list for several."""

    shows_a_lone_error = False

    def item(self, result: Result, spec: RequestSpec) -> object:  # noqa: ARG002
        """The result, or the file's error."""
        return self.result(result) if result.error is None else self.error(result.error)

    def around(self, results: Sequence[Result], spec: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
        """The brackets of a list, or nothing for a single file."""
        return (b"[", b"]") if len(results) > 1 else (b"", b"")

    @abstractmethod
    def result(self, result: Result) -> object:
        """The classes of one image."""

    @abstractmethod
    def error(self, error: GatewayError) -> object:
        """The error of one file."""
