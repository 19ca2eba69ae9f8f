"""Rich's console for text of unknown origin: class names, file names and messages of services."""

from typing import Any

from rich.console import Console
from rich.text import Text

from gateway_client.visible import visible


class PlainConsole(Console):
    """Prints each string as it is: without markup, and with control characters and line breaks escaped.

    This applies to the cells of tables as well. For style, use the `style` of `print`, or `rich.text.Text`.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # Rich's
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401
        """See Console; every printed string passes through here."""
        return super().render_str(visible(text), **options)
