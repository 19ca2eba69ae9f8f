"""`gateway key`: the command that creates API keys."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.command_line.terminal import emit, print_status
from gateway.environment import load_settings
from gateway.plugins.keys.key_file import KeysError, add_key
from gateway.plugins.keys.settings import KeySettings

app = typer.Typer(help="API keys; without any, the API is open to everyone.", no_args_is_help=True)


@app.command("add")
def key_add(
    name: Annotated[str, typer.Argument(help="Name of the key's holder, for log and metrics.")],
    quota: Annotated[
        list[str] | None,
        typer.Argument(help="Its quota, such as rate=100/s share=0.5 priority=bulk models=a,b routes=/predict."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="File of the keys' hashes (GATEWAY_API_KEYS_FILE).", dir_okay=False),
    ] = None,
) -> None:
    """Create a key and print it; the file keeps only its hash. Running gateways accept it at once.

    To change its quota later, edit its line in the file; to remove the key, delete the line.
    """
    path = file or KeySettings.of(load_settings()).api_keys_file
    if path is None:
        raise KeysError("no key file given: set --file or GATEWAY_API_KEYS_FILE")
    emit(add_key(path, name, quota or ()))
    print_status(f"{path} has the hash of {name}'s key; the key itself is not stored, so copy it now")
