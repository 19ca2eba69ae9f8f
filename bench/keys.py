"""`python -m bench.keys`: what one API key's flood costs another key, without quotas and with them.

In each round another key sends alone, and then beside a flood over many connections with each set of quotas. The flood
sends its next request as soon as it has any answer, whatever Retry-After says. `--simulated 0.02` puts a simulated
Triton behind the gateway, which takes 20 ms for each call and no processor time: what remains is the order of the
gateway. With the defaults it takes three minutes.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bench.http_load import HttpLoad, labelled
from bench.measurement import Measurement, Series, percentile
from bench.output import Into, progress, publish, table
from bench.photos import coffee
from bench.remote import Remote
from bench.repository import RECIPES, repository
from bench.scale import simulated
from bench.services import Service, gateway_serve, gateway_up
from gateway_plugins.keys.key_file import add_key, digest
from gateway_plugins.keys.quota import read_quota

WARM_UP_SECONDS = 3.0
SETTLE_SECONDS = 1.0
"""Time for a flood to fill what it can fill, before a measurement."""


def main(
    model: Annotated[str, typer.Option(help=", ".join(RECIPES))] = "efficientnet-lite0",
    rate: Annotated[str, typer.Option(help="Rate of the flood's key.")] = "5/s",
    share: Annotated[str, typer.Option(help="Part of the images in flight of the flood's key.")] = "0.1",
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=1)] = 6.0,
    rounds: Annotated[int, typer.Option(help="Each measures everything once; medians count.", min=1)] = 5,
    connections: Annotated[int, typer.Option(help="Connections of the flood.", min=1)] = 64,
    concurrency: Annotated[int, typer.Option(help="Connections of the other key.", min=1)] = 8,
    simulated_seconds: Annotated[
        float, typer.Option("--simulated", help="Seconds of a call to a simulated Triton; 0 for the model.")
    ] = 0.0,
    into: Into = None,
) -> None:
    """Print the other key's p99 beside the flood, in relation to that alone, and what the flood was answered."""
    quotas = {
        "no quotas": ("", ""),
        "flood: bulk": (f"{read_quota({'share': '1'})}", "priority=bulk"),
        f"flood: bulk, {rate}, share {share}": ("share=1", f"priority=bulk rate={rate} burst=5 share={share}"),
    }
    alone = Series()
    beside = {name: Series() for name in quotas}
    answers = {name: Counter[int]() for name in quotas}
    with tempfile.TemporaryDirectory(prefix="bench-keys-") as folder:
        file = Path(folder) / "keys"
        key, flood_key = (add_key(file, name) for name in ("other", "flood"))
        with (
            _service(model, simulated_seconds, {"api_keys_file": file}) as service,
            Remote(HttpLoad, service.url, key) as other,
            Remote(HttpLoad, service.url, flood_key) as flood,
        ):
            photos = [labelled(service.url, coffee(), key)]
            other.call("run", photos, WARM_UP_SECONDS, concurrency, 1)
            for number in range(rounds):
                alone.append(other.call("run", photos, seconds, concurrency, 1))
                for name, (of_key, of_flood) in quotas.items():
                    lines = [f"other:{digest(key.encode())} {of_key}", f"flood:{digest(flood_key.encode())} {of_flood}"]
                    file.write_text("\n".join(line.rstrip() for line in lines) + "\n")
                    flooding = flood.start("flood", photos, seconds + 2 * SETTLE_SECONDS, connections)
                    other.call("flood", photos, SETTLE_SECONDS, concurrency)
                    beside[name].append(other.call("flood", photos, seconds, concurrency))
                    answers[name].update(flooding.result().statuses)
                    progress(f"round {number + 1}, {name}: {_p99(beside[name][-1]) / _p99(alone[-1]):.2f}")
    rows = [
        (
            name,
            str(beside[name].ratio(alone, _p99)),
            f"{beside[name].ratio(alone)} of {alone.rate:.0f}",
            _refused(beside[name]),
            ", ".join(f"{status}: {count}" for status, count in sorted(answers[name].items())),
        )
        for name in quotas
    ]
    header = ["quotas", "p99 beside / alone", "images/s beside / alone", "refused", "the flood's answers"]
    publish(table(header, rows), into, "bench.keys")


@contextmanager
def _service(model: str, simulated_seconds: float, settings: Mapping[str, object]) -> Iterator[Service]:
    """A service with a model, or in front of a simulated Triton."""
    if simulated_seconds:
        with (
            simulated(1, seconds=simulated_seconds) as triton,
            gateway_serve(triton.addresses[0], settings=settings) as service,
        ):
            yield service
    else:
        with repository(model, [], progress) as models, gateway_up(models, settings=settings) as service:
            yield service


def _p99(measurement: Measurement) -> float:
    return percentile(measurement.latencies_seconds, 99)


def _refused(series: Series) -> str:
    statuses = sum((each.statuses for each in series), Counter[int]())
    return f"{1 - statuses[200] / statuses.total():.1%}"


if __name__ == "__main__":
    typer.run(main)
