"""Text of unknown origin on the console."""

import io

import pytest
from rich.table import Table

from gateway_cli.terminal import emit
from gateway_local.console import PlainConsole, plain

HOSTILE = "[/red]a\x1b[2J\nb\x9b\u202e:cat:"
SHOWN = r"[/red]a\x1b[2J\nb\x9b\u202e:cat:"


@pytest.mark.parametrize("terminal", [True, False])
def test_strings_and_cells_are_printed_as_text(terminal):
    """Markup, control characters and line breaks of a name have no effect."""
    screen = io.StringIO()
    console = PlainConsole(file=screen, force_terminal=terminal, color_system=None, width=100)
    table = Table(HOSTILE, box=None)
    table.add_row(HOSTILE)
    console.print(HOSTILE)
    console.print(table)
    console.print(plain(HOSTILE))
    assert [line.strip() for line in screen.getvalue().splitlines()] == [SHOWN] * 4


def test_lines_of_a_result_are_printed_as_text(capsys):
    emit(HOSTILE, "b")
    assert capsys.readouterr().out == f"{SHOWN}\nb\n"
