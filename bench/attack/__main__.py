"""`make attack`: send each attack to a running service, and print what it costs."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from bench.attack.measure import Bystander, Cost, Sender, measure
from bench.attack.registry import FAMILIES, FLEET
from bench.attack.service import Running, running_service
from bench.attack.table import cells, tables
from bench.attack.target import Attack, ServiceOptions, Target
from bench.output import Into, NoMarkers, progress, publish
from bench.photos import Photo, coffee
from bench.remote import Remote
from bench.services import ServiceFailed

WARM_UP_SECONDS = 5.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    only: Annotated[str, typer.Option(help="Only attacks or families whose name contains one of these words.")] = "",
    calm: Annotated[float, typer.Option(help="Seconds before each attack, to compare with.", min=0.5)] = 2.0,
    workers: Annotated[int, typer.Option(help="Processes of the gateway.", min=1)] = 1,
    into: Into = None,
    *,
    show: Annotated[bool, typer.Option("--list", help="List the attacks without sending any.")] = False,
) -> None:
    """Start services and attack them beside well-behaved clients; the exit code is 1 if an attack exceeds a limit.

    The limits: a request of at most 20 MB costs no more processor time than GET /limits allows and no more than 100 MB
    beyond what admission counts, holds the event loop for no more than 50 ms, kills no process and changes no other
    answer. It brings about no 5xx, no traceback, and no more log than its own bytes and 1,500 more a request. The p99
    of another client is at most three times what it was, a new client has its answer within 2 s, and /health/live
    answers within 1 s.
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
        publish(tables(costs_of), into, "make attack")
    except (ServiceFailed, NoMarkers) as exc:
        typer.secho(f"error: {exc}", err=True, fg="red")
        raise typer.Exit(1) from exc
    raise typer.Exit(1 if any(cost.misses for costs in costs_of.values() for cost in costs) else 0)


Kind = tuple[bool, ServiceOptions]
"""Whether a service has three Tritons, and its options."""


def _services(chosen: Mapping[str, Sequence[Attack]]) -> dict[Kind, dict[str, list[Attack]]]:
    """The services that the attacks need, and for each its attacks by family."""
    services: dict[Kind, dict[str, list[Attack]]] = {}
    for family, attacks in chosen.items():
        for attack in attacks:
            services.setdefault((family == FLEET, attack.options), {}).setdefault(family, []).append(attack)
    return services


def _measured(kind: Kind, families: Mapping[str, Sequence[Attack]], workers: int, calm: float) -> dict[str, list[Cost]]:
    """The costs of each attack, measured on a separate service."""
    fleet, options = kind
    progress(f"starting {'three Tritons' if fleet else 'gateway up'}, {workers} workers, {options}")
    with running_service(options, fleet=fleet, workers=workers) as running:
        port = running.service.port
        target = Target("127.0.0.1", port, workers=workers, key=running.attacker_key, keys_file=running.keys_file)
        with Remote(Sender, target) as sender:
            photo = coffee()
            photo = replace(photo, label=_label(running, photo))
            progress(f"warming up; the well-behaved client's photograph shows {photo.label!r}")
            with Bystander(running, photo) as warm:
                warm.wait(WARM_UP_SECONDS)
            costs: dict[str, list[Cost]] = {}
            for family, attacks in families.items():
                for attack in attacks:
                    cost = measure(running, sender, family, attack, photo, calm)
                    costs.setdefault(family, []).append(cost)
                    progress(" | ".join(cells(cost)))
    return costs


def _label(running: Running, photo: Photo) -> str:
    """The service's prediction for the photograph without an attack."""
    with Bystander(running, photo) as client:
        client.wait(0.5)
    return client.label


if __name__ == "__main__":
    sys.exit(app())
