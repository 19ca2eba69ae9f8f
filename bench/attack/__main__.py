"""`make attack`: send each attack to a running service, and print what it costs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from bench.attack.beside import photographs
from bench.attack.families import FAMILIES, TITLES
from bench.attack.measure import HEADER, Bystander, Cost, Sender, cells, measure
from bench.attack.service import running_service
from bench.attack.target import Case, ServiceOptions, Target
from bench.output import Into, NoMarkers, progress, publish, table
from bench.remote import Remote
from bench.services import ServiceFailed

WARM_UP_SECONDS = 3.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    only: Annotated[str, typer.Option(help="Only cases or families whose name contains one of these words.")] = "",
    alone: Annotated[float, typer.Option(help="Seconds before each attack, to compare with.", min=0.5)] = 2.0,
    workers: Annotated[int, typer.Option(help="Processes of the gateway.", min=1)] = 1,
    into: Into = None,
    *,
    keys: Annotated[bool, typer.Option("--keys", help="Require API keys; the attacker has one.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the cases without sending any.")] = False,
) -> None:
    """Start services and attack them beside well-behaved clients; the exit code is 1 if an attack exceeds a limit.

    The limits: an attack costs no more processor time than GET /limits allows for its requests and no more than 100 MB
    beyond what admission counts, pauses the event loop for no more than 50 ms, kills no process and changes no other
    answer. It brings about no 5xx, no traceback, and no more log than its own bytes and 1,500 more a request. The p99
    of another client is at most three times what it was, a new client has its answer within 2 s, and /health/live
    answers within 1 s.
    """
    words = only.split() or [""]
    chosen = {
        family: [case for case in cases if any(word in case.name or word == family for word in words)]
        for family, cases in FAMILIES.items()
    }
    if show or not any(chosen.values()):
        for family, cases in chosen.items():
            for case in cases:
                typer.echo(f"{family:12} {case.name:42} {case.what}")
        raise typer.Exit(0 if any(chosen.values()) else 1)
    services: dict[ServiceOptions, list[Case]] = {}
    for case in (case for cases in chosen.values() for case in cases):
        options = replace(case.options, keys=max(case.options.keys, 2)) if keys else case.options
        services.setdefault(options, []).append(case)
    costs: dict[str, Cost] = {}
    try:
        for options, cases in services.items():
            costs |= _measured(options, cases, workers, alone)
        publish(_tables(chosen, costs), into, "make attack")
    except (ServiceFailed, NoMarkers) as exc:
        typer.secho(f"error: {exc}", err=True, fg="red")
        raise typer.Exit(1) from exc
    raise typer.Exit(1 if any(cost.misses for cost in costs.values()) else 0)


def _measured(options: ServiceOptions, cases: Sequence[Case], workers: int, alone: float) -> dict[str, Cost]:
    """The cost of each case by name, measured on a service of its own."""
    progress(f"starting gateway up, {workers} workers, {options}")
    costs = {}
    with photographs(), running_service(options, workers) as running:
        target = Target("127.0.0.1", running.service.port, running.grpc_port, workers=workers, key=running.attacker_key)
        with Remote(Sender, target) as sender:
            labels = {}
            for kind in {case.beside: None for case in cases}:
                with Bystander(running, kind) as warm:
                    warm.wait(WARM_UP_SECONDS)
                if warm.faults:
                    raise ServiceFailed(f"the well-behaved client of {kind} is refused: {dict(warm.faults)}")
                labels[kind] = warm.label
            progress(f"warmed up; the well-behaved clients' photograph shows {labels}")
            for case in cases:
                costs[case.name] = measure(running, sender, case, labels[case.beside], alone)
                progress(" | ".join(cells(costs[case.name])))
    return costs


def _tables(chosen: dict[str, list[Case]], costs: dict[str, Cost]) -> str:
    """A table for each family."""
    return "\n".join(
        f"**{TITLES[family]}**\n\n{table(HEADER, (cells(costs[case.name]) for case in cases))}"
        for family, cases in chosen.items()
        if cases
    )


if __name__ == "__main__":
    sys.exit(app())
