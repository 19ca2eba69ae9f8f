"""The client's error types, written from the gateway's: `make docs` puts them in place, and a test holds them equal."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from gateway import errors

MODULE = Path(__file__).resolve().parents[1] / "gateway_client" / "errors.py"

HEAD = '''"""What the gateway answers in place of a result, as types. Written by docs/client_errors.py: do not edit."""

from collections.abc import Mapping
from typing import Any, ClassVar


class GatewayError(Exception):
    """An answer other than a result: a stable code, an HTTP status and a message that says what to do.

    `details` are further members of the problem document (RFC 9457), such as the limit that was broken and its value;
    `retry_after_seconds` is what the Retry-After header said.
    """

    status: int = 500
    code: str = "unknown"
    retryable: ClassVar[bool] = False
    """Whether the same picture may have an answer a little later."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.status = status or type(self).status
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.details = dict(details or {})
'''

TAIL = '''
BY_CODE: dict[str, type[GatewayError]] = {{
{entries}
}}
"""The type of each code."""
'''


def subclasses(root: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    """The errors below one, each after its base."""
    for error in root.__subclasses__():
        if error.__module__ == errors.__name__:
            yield error
            yield from subclasses(error)


def source() -> str:
    """The module's text."""
    parts, entries = [HEAD], []
    for error in subclasses(errors.GatewayError):
        told = " ".join((inspect.getdoc(error) or "").split())
        body = [f'    """{told}"""', ""]
        if "code" in vars(error):
            body += [f"    status = {int(error.status)}", f'    code = "{error.code}"']
            entries.append(f'    "{error.code}": {error.__name__},')
            if getattr(error, "retry_after_seconds", None) is not None:
                body.append("    retryable = True")
        elif body[-1] == "":
            body.pop()
        base = error.__mro__[1].__name__
        parts.append("\n".join([f"\nclass {error.__name__}({base}):", *body, ""]))
    return "\n".join([*parts, TAIL.format(entries="\n".join(entries))])


if __name__ == "__main__":
    sys.exit(MODULE.write_text(source()) == 0)
