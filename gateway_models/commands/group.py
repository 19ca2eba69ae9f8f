"""`gateway model`: the group of commands, and their shared options and functions."""

from collections.abc import Iterable
from typing import Annotated

import typer

from gateway.command_line.terminal import print_status

model_app = typer.Typer(
    help="Models: from a trained network to Triton's model repository.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


Name = Annotated[str, typer.Argument(help="The model's name, as `gateway model list` shows it.")]


def reload(address: str | None, *, load: Iterable[str] = (), unload: Iterable[str] = ()) -> None:
    """Load and unload models in a running Triton, if its `address` is given."""
    from gateway_models.blocking_triton import BlockingTriton

    wanted = tuple(load)
    if address is not None:
        with BlockingTriton(address) as triton:
            triton.unload(*unload)
            triton.load(*wanted)
        print_status(f"Triton at {address} {'reloaded' if wanted else 'unloaded'} the model")


def explain_how_to_load(name: str, address: str | None) -> None:
    """Without --triton, print how a running service loads the change."""
    if address is None:
        print_status(
            f"to load it into a running service, restart the service, send it POST /models/{name}/load with an admin "
            "key, or add --triton HOST:PORT, its Triton's gRPC address (gateway up --triton-port PORT)"
        )
