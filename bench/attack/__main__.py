"""`make attack`: send each attack to a running service, and print what it costs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bench.attack import cache, clients, killers, parsers, pictures
from bench.attack.measure import Bystander, Cost, Sender, measure
from bench.attack.service import FLEET, UP, Running, ServiceFailed, running_service
from bench.attack.table import row, table, write
from bench.attack.target import Attack
from bench.document import NoMarkers
from bench.photos import Photo, coffee
from bench.remote import Remote

FAMILIES = {
    "pictures": pictures.ATTACKS,
    "parsers": parsers.ATTACKS,
    "clients": clients.ATTACKS,
    "cache": cache.ATTACKS,
    "killers": killers.ATTACKS,
    "fleet": killers.ON_FLEET,
}
"""All but the last are sent to a service with one Triton."""
WARM_UP_SECONDS = 5.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def say(text: str) -> None:
    """A line of progress on stderr; stdout is for the table."""
    typer.echo(f"attack | {text}", err=True)


@app.command()
def main(
    only: Annotated[str, typer.Option(help="Only attacks or families whose name contains this.")] = "",
    calm: Annotated[float, typer.Option(help="Seconds before each attack, to compare with.", min=0.5)] = 2.0,
    into: Annotated[Path | None, typer.Option("--write", help="Put the table into this document as well.")] = None,
    *,
    show: Annotated[bool, typer.Option("--list", help="Name the attacks, and send none.")] = False,
) -> None:
    """Attack a service of its own, started for it, beside a well-behaved client.

    The bar: a request of at most 20 MB costs no more than 3 CPU seconds and 100 MB beyond what admission counts, holds
    the event loop for no more than 50 ms, kills no process and changes no other answer, and the p99 of the other client
    is at most three times what it was. The exit code is 1 where it is missed.
    """
    chosen = {
        family: [attack for attack in attacks if only in attack.name or only == family]
        for family, attacks in FAMILIES.items()
    }
    if show or not any(chosen.values()):
        for family, attacks in chosen.items():
            for attack in attacks:
                typer.echo(f"{family:10} {attack.name:32} {attack.what}")
        raise typer.Exit(0 if any(chosen.values()) else 1)
    on_fleet = chosen.pop("fleet")
    costs: list[Cost] = []
    try:
        costs += _measured([attack for attacks in chosen.values() for attack in attacks], UP, calm)
        costs += _measured(on_fleet, FLEET, calm)
        if into is not None:
            write(into, costs)
    except (ServiceFailed, NoMarkers) as exc:
        typer.secho(f"error: {exc}", err=True, fg="red")
        raise typer.Exit(1) from exc
    typer.echo(table(costs), nl=False)
    raise typer.Exit(1 if any(cost.misses for cost in costs) else 0)


def _measured(attacks: Sequence[Attack], module: tuple[str, ...], calm: float) -> list[Cost]:
    """What each attack costs a service that a module runs."""
    if not attacks:
        return []
    say(f"starting the service: python -m {' '.join(module)}")
    costs = []
    with running_service({}, module) as running, Remote(Sender, running.port) as sender:
        photo = coffee()
        photo = replace(photo, label=_label(running, photo))
        say(f"warming up; the well-behaved client's photograph shows {photo.label!r}")
        with Bystander(running.port, photo) as warm:
            warm.wait(WARM_UP_SECONDS)
        for attack in attacks:
            costs.append(measure(running, sender, attack, photo, calm))
            say(row(costs[-1]))
    return costs


def _label(running: Running, photo: Photo) -> str:
    """What the service sees in the photograph while nobody disturbs it."""
    with Bystander(running.port, photo) as client:
        client.wait(0.5)
    return client.label


if __name__ == "__main__":
    sys.exit(app())
