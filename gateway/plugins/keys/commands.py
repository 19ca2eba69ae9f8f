"""`gateway key`: the commands that create, list and remove API keys."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gateway.command_line.terminal import emit, print_status
from gateway.environment import load_settings
from gateway.plugins.keys.key_file import KeysError, add_key, read_keys, remove_key
from gateway.plugins.keys.quota import InvalidQuota, Priority, read_quota
from gateway.plugins.keys.settings import KeySettings

app = typer.Typer(help="API keys; without any, the API is open to everyone.", no_args_is_help=True)

_given = partial(typer.Option, show_default=False)
KeysFile = Annotated[
    Path | None, _given("--file", help="File of the keys' hashes (GATEWAY_API_KEYS_FILE).", dir_okay=False)
]


@app.command("add")
def key_add(
    name: Annotated[str, typer.Argument(help="Name of the key's holder, for log and metrics.", show_default=False)],
    file: KeysFile = None,
    rate: Annotated[str | None, _given(help="Images per s, min or h, such as 100/s.")] = None,
    per_day: Annotated[str | None, _given(help="Images in a day of UTC, such as 10000.")] = None,
    per_month: Annotated[str | None, _given(help="Images in a month of UTC, such as 200000.")] = None,
    share: Annotated[
        float | None, _given(help="Part of the images in flight, such as 0.5; also its weight in the queue.")
    ] = None,
    priority: Annotated[Priority | None, _given(help="Weight in the queue: interactive is ten times bulk.")] = None,
    models: Annotated[str | None, _given(help="Models that it may use, separated by commas.")] = None,
    routes: Annotated[str | None, _given(help="Paths that it may use, such as /predict,/v2.")] = None,
) -> None:
    """Create a key and print it; the file keeps only its hash. Running gateways accept it at once.

    Its options are its quota; to change them later, edit its line in the file.
    """
    options = {"rate": rate, "per-day": per_day, "per-month": per_month, "share": share, "priority": priority}
    options |= {"models": models, "routes": routes}
    try:
        quota = read_quota({option: str(value) for option, value in options.items() if value is not None})
    except InvalidQuota as exc:
        raise KeysError(f"--{exc}") from None
    path = _keys_file(file)
    emit(add_key(path, name, quota))
    print_status(f"{path} has the hash of {name}'s key; the key itself is not stored, so copy it now")


@app.command("list")
def key_list(file: KeysFile = None) -> None:
    """Print the names of the keys, each with its quota, if it has one."""
    keys = read_keys(_keys_file(file))
    for name in keys.digests:
        emit(f"{name} {keys.quotas.get(name, '')}".rstrip())


@app.command("remove")
def key_remove(
    name: Annotated[str, typer.Argument(help="The key's name, as `gateway key list` shows it.", show_default=False)],
    file: KeysFile = None,
) -> None:
    """Remove a key; running gateways refuse it at once."""
    path = _keys_file(file)
    remove_key(path, name)
    print_status(f"removed {name}'s key from {path}")


def _keys_file(given: Path | None) -> Path:
    path = given or KeySettings.of(load_settings()).api_keys_file
    if path is None:
        raise KeysError("no key file given: set --file or GATEWAY_API_KEYS_FILE")
    return path
