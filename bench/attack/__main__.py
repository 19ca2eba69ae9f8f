"""`make attack`: send each attack to a running service, and print what it costs."""

import sys
from dataclasses import replace
from typing import Annotated

import typer

from bench.attack import cache, clients, killers, parsers, pictures
from bench.attack.measure import Bystander, Cost, Sender, measure
from bench.attack.service import Running, ServiceFailed, running_service
from bench.photos import Photo, coffee
from bench.remote import Remote

FAMILIES = {"pictures": pictures, "parsers": parsers, "clients": clients, "cache": cache, "killers": killers}
WARM_UP_SECONDS = 5.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def say(text: str) -> None:
    """A line of progress on stderr; stdout is for the table."""
    typer.echo(f"attack | {text}", err=True)


@app.command()
def main(
    only: Annotated[str, typer.Option(help="Only attacks or families whose name contains this.")] = "",
    calm: Annotated[float, typer.Option(help="Seconds before each attack, to compare with.", min=0.5)] = 2.0,
    *,
    show: Annotated[bool, typer.Option("--list", help="Name the attacks, and send none.")] = False,
) -> None:
    """Attack a service of its own, started for it, beside a well-behaved client.

    The bar: a request of at most 20 MB costs no more than 3 CPU seconds and 100 MB beyond what admission counts, holds
    the event loop for no more than 50 ms, kills no process and changes no other answer, and the p99 of the other client
    is at most three times what it was. The exit code is 1 where it is missed.
    """
    chosen = [
        (family, attack)
        for family, module in FAMILIES.items()
        for attack in module.ATTACKS
        if only in attack.name or only == family
    ]
    if show or not chosen:
        for family, attack in chosen:
            typer.echo(f"{family:10} {attack.name:32} {attack.what}")
        raise typer.Exit(0 if chosen else 1)
    costs: list[Cost] = []
    photo = coffee()
    try:
        say("starting the service")
        with running_service({}) as running, Remote(Sender, running.port) as sender:
            photo = replace(photo, label=_label(running, photo))
            say(f"warming up; the well-behaved client's photograph shows {photo.label!r}")
            with Bystander(running.port, photo) as warm:
                warm.wait(WARM_UP_SECONDS)
            for _, attack in chosen:
                costs.append(measure(running, sender, attack, photo, calm))
                say(_row(costs[-1]))
    except ServiceFailed as exc:
        typer.secho(f"error: {exc}", err=True, fg="red")
        raise typer.Exit(1) from exc
    print_table(costs)
    raise typer.Exit(1 if any(cost.misses for cost in costs) else 0)


def print_table(costs: list[Cost]) -> None:
    """The table of docs/reliability.md."""
    print("| attack | answer | CPU s | memory, MB | longest pause, ms | p99 beside it / before | misses |")
    print("|---|---|---|---|---|---|---|")
    for cost in costs:
        print(_row(cost))


def _row(cost: Cost) -> str:
    pause = f"{cost.pause_seconds * 1e3:.0f}" if cost.pause_seconds else "< 50"
    cells = (
        cost.attack.what,
        cost.answer,
        f"{cost.cpu_seconds:.1f}",
        f"{cost.memory_bytes / 1e6:.0f}",
        pause,
        f"{cost.p99_ratio:.1f}",
        ", ".join(cost.misses) or "–",
    )
    return f"| {' | '.join(cells)} |"


def _label(running: Running, photo: Photo) -> str:
    """What the service sees in the photograph while nobody disturbs it."""
    with Bystander(running.port, photo) as client:
        client.wait(0.5)
    return client.label


if __name__ == "__main__":
    sys.exit(app())
