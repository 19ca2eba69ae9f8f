"""`make attack`: send each attack to a running service, and print what it costs."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bench.attack import cache, clients, connections, costs, errors, killers, parsers, pictures, streams
from bench.attack.measure import Bystander, Cost, Sender, measure
from bench.attack.service import FLEET, UP, Running, ServiceFailed, running_service
from bench.attack.table import row, table, write
from bench.attack.target import Attack, ServiceOptions, Target, folded
from bench.output import NoMarkers
from bench.photos import Photo, coffee
from bench.remote import Remote

FAMILIES = {
    "pictures": pictures.ATTACKS,
    "n-fold": folded(pictures.ATTACKS),
    "costs": costs.ATTACKS,
    "parsers": parsers.ATTACKS,
    "errors": errors.ATTACKS,
    "clients": clients.ATTACKS,
    "connections": connections.ATTACKS,
    "streams": streams.ATTACKS,
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
    only: Annotated[str, typer.Option(help="Only attacks or families whose name contains one of these words.")] = "",
    calm: Annotated[float, typer.Option(help="Seconds before each attack, to compare with.", min=0.5)] = 2.0,
    workers: Annotated[int, typer.Option(help="Processes of the gateway.", min=1)] = 1,
    into: Annotated[Path | None, typer.Option("--write", help="Put the table into this document as well.")] = None,
    *,
    show: Annotated[bool, typer.Option("--list", help="Name the attacks, and send none.")] = False,
) -> None:
    """Attack services of its own, started for it, beside well-behaved clients.

    The bar: a request of at most 20 MB costs no more processor time than GET /limits allows and no more than 100 MB
    beyond what admission counts, holds the event loop for no more than 50 ms, kills no process and changes no other
    answer. It brings about no 5xx, no traceback, and no more log than its own bytes and 1,500 more a request. The p99
    of another client is at most three times what it was, a new client has its answer within 2 s, and /health/live
    answers within 1 s. The exit code is 1 where it is missed.
    """
    words = only.split() or [""]
    chosen = {
        family: [attack for attack in attacks if any(word in attack.name or word == family for word in words)]
        for family, attacks in FAMILIES.items()
    }
    if show or not any(chosen.values()):
        for family, attacks in chosen.items():
            for attack in attacks:
                typer.echo(f"{family:12} {attack.name:48} {attack.what}")
        raise typer.Exit(0 if any(chosen.values()) else 1)
    costs_of: dict[str, list[Cost]] = {}
    try:
        for service, families in _services(chosen).items():
            for family, costs_there in _measured(service, families, workers, calm).items():
                costs_of.setdefault(family, []).extend(costs_there)
        if into is not None:
            write(into, costs_of)
    except (ServiceFailed, NoMarkers) as exc:
        typer.secho(f"error: {exc}", err=True, fg="red")
        raise typer.Exit(1) from exc
    typer.echo(table(costs_of), nl=False)
    raise typer.Exit(1 if any(cost.misses for costs in costs_of.values() for cost in costs) else 0)


Service = tuple[tuple[str, ...], ServiceOptions]
"""The module that runs a service, and its options."""


def _services(chosen: Mapping[str, Sequence[Attack]]) -> dict[Service, dict[str, list[Attack]]]:
    """The services that the attacks need, and for each its attacks by family."""
    services: dict[Service, dict[str, list[Attack]]] = {}
    for family, attacks in chosen.items():
        for attack in attacks:
            service = FLEET if family == "fleet" else UP, attack.options
            services.setdefault(service, {}).setdefault(family, []).append(attack)
    return services


def _measured(
    service: Service, families: Mapping[str, Sequence[Attack]], workers: int, calm: float
) -> dict[str, list[Cost]]:
    """The costs of each attack, measured on a separate service."""
    module, options = service
    say(f"starting the service: python -m {' '.join(module)}, {workers} workers, {options}")
    with running_service(options, module, workers) as running:
        target = Target(
            "127.0.0.1", running.port, workers=workers, key=running.attacker_key, keys_file=running.keys_file
        )
        with Remote(Sender, target) as sender:
            photo = coffee()
            photo = replace(photo, label=_label(running, photo))
            say(f"warming up; the well-behaved client's photograph shows {photo.label!r}")
            with Bystander(running, photo) as warm:
                warm.wait(WARM_UP_SECONDS)
            costs: dict[str, list[Cost]] = {}
            for family, attacks in families.items():
                for attack in attacks:
                    cost = measure(running, sender, attack, photo, calm)
                    costs.setdefault(family, []).append(cost)
                    say(row(cost))
    return costs


def _label(running: Running, photo: Photo) -> str:
    """The service's prediction for the photograph without an attack."""
    with Bystander(running, photo) as client:
        client.wait(0.5)
    return client.label


if __name__ == "__main__":
    sys.exit(app())
