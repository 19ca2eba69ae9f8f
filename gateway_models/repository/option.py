"""The options of `gateway model add`, declared at the fields of the data classes that they fill."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

IMAGES, SERVING = "How images were prepared in training", "How Triton runs it"
"""Panels of --help."""


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of a field: `Annotated[int, Option("Side of the centre crop.", flag="--crop")]`.

    `flag` is by default the field's name, and "" makes it a positional argument. `type` is the type on the command
    line, if it is another than the field's, and `read` converts it; such an option has no default there.
    """

    help: str
    panel: str | None = None
    flag: str | None = None
    type: Any = None
    read: Callable[[Any], Any] | None = None
