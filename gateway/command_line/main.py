"""The `gateway` command. Each command is an entry point, which names a function or a group of commands.

Commands live in the packages that they command, and are loaded when they are used: `gateway serve` loads no other.
"""

import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

import gateway.plain_structlog  # noqa: F401
from gateway import __version__
from gateway.command_line.terminal import emit
from gateway.errors import UserError
from gateway.log_stream import LogStream
from gateway_client.visible import visible

GROUP = "triton_gateway.commands"
"""The group of entry points; the name of each is the command's."""


class Commands(TyperGroup):
    """The commands of the installed distributions, in alphabetical order."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # typer's
        super().__init__(**attributes)
        self._entries = {entry.name: entry for entry in entry_points(group=GROUP)}
        not_loaded: Any = None
        self.commands = dict.fromkeys(sorted(self._entries), not_loaded)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:  # noqa: ANN401, ARG002  # typer's
        """Load a command; None, with a warning, if it cannot be loaded: that must not cost other commands."""
        if (entry := self._entries.get(cmd_name)) is None:
            return None
        try:
            return _loaded(entry)
        except Exception as exc:
            reason = f"the command {cmd_name!r} cannot be loaded from {entry.value}: {type(exc).__name__}: {exc}"
            typer.secho(f"warning: {visible(reason)}", err=True, fg="yellow")
            return None


def _loaded(entry: EntryPoint) -> TyperCommand | TyperGroup:
    holder = typer.Typer(rich_markup_mode="markdown")
    found = entry.load()
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=entry.name)
    else:
        holder.command(entry.name)(found)
    return cast("TyperCommand | TyperGroup", typer.main.get_group(holder).commands[entry.name])


app = typer.Typer(
    name="gateway",
    cls=Commands,
    help="Classify images over HTTP: a FastAPI gateway in front of a Triton ensemble.\n\n"
    "Start with `gateway up`, or `gateway up best.pt --labels labels.txt` for a model of yours.\n\n"
    "Every setting is a GATEWAY_ variable; options take precedence over variables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(*, wanted: bool) -> None:
    if wanted:
        emit(__version__)
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[  # the callback does the work
        bool,
        typer.Option(
            "--version", callback=lambda value: _version(wanted=value), is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: prints errors that users can fix as one sentence, without a traceback."""
    # A log that cannot be written must not stop a service.
    sys.stderr = cast("TextIO", LogStream(sys.stderr))
    try:
        app()
    except UserError as exc:
        lines = "\n  ".join(map(visible, exc.args))
        typer.secho(f"error: {lines}", err=True, fg="red")
        sys.exit(1)
    except OSError as exc:  # a folder without write permission, a full disk, a path that is too long
        if exc.strerror is None:
            raise
        names = " -> ".join(str(name) for name in (exc.filename, exc.filename2) if name is not None)
        typer.secho(f"error: {exc.strerror}{names and ': '}{visible(names)}", err=True, fg="red")
        sys.exit(1)
