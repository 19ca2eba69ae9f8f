"""`python -m bench.overload`: throughput and latency of the service at five times its capacity."""

import time
from typing import Annotated

import typer

from bench.http_load import HttpLoad, labelled
from bench.measurement import Measurement, percentile
from bench.output import progress, table
from bench.photos import coffee
from bench.remote import Remote
from bench.repository import RECIPES, repository
from bench.services import gateway_up
from gateway.plugins import settings_class
from gateway.settings import MIB

Settings = settings_class()

CONCURRENCY = 32
CALM_SECONDS = 3.0
RECOVERED_WITHIN = 2.0
"""The service has recovered when a request takes at most this many times as long as before the overload."""


def main(
    model: Annotated[str, typer.Option(help=", ".join(RECIPES))] = "efficientnet-lite0",
    seconds: Annotated[float, typer.Option(help="Length of the overload.")] = 60.0,
    peak_seconds: Annotated[float, typer.Option(help="Length of the measurement of the capacity.")] = 15.0,
    times: Annotated[float, typer.Option(help="Load, as a multiple of the capacity.")] = 5.0,
) -> None:
    """Measure the capacity, send several times as much, and print the rate and latency of the responses."""
    with (
        repository(model, [], progress) as models,
        gateway_up(models) as service,
        Remote(HttpLoad, service.url) as load,
    ):
        photos = [labelled(service.url, coffee())]
        load.call("run", photos, CALM_SECONDS, CONCURRENCY, 1)
        progress(f"capacity: {CONCURRENCY} requests in flight for {peak_seconds:g} s")
        peak: Measurement = load.call("run", photos, peak_seconds, CONCURRENCY, 1)
        calm: Measurement = load.call("run", photos, CALM_SECONDS, 1, 1)
        memory_bytes = service.api.memory_info().rss
        progress(f"{peak.rate:.0f} images/s; overload: {times * peak.rate:.0f} requests/s for {seconds:g} s")
        over: Measurement = load.call("run_at", photos, seconds, times * peak.rate)
        growth_bytes = service.api.memory_info().rss - memory_bytes
        ended, usual_seconds = time.perf_counter(), percentile(calm.latencies_seconds, 50)
        while min(load.call("run", photos, 0.2, 1, 1).latencies_seconds) > RECOVERED_WITHIN * usual_seconds:
            pass
        recovered_seconds = time.perf_counter() - ended
    p99, usual_p99 = (percentile(phase.latencies_seconds, 99) for phase in (over, peak))
    bound = Settings.model_fields["max_wait_seconds"].default
    others = {status: count for status, count in over.statuses.items() if status not in (200, 503)}
    rows = [
        ("images/s / images/s without overload", f"{over.rate / peak.rate:.2f}"),
        (
            "p99 of the classified / (max_wait_seconds + p99 without overload)",
            f"{p99 / (bound + usual_p99):.2f} = {p99:.2f} s / ({bound:g} s + {usual_p99:.2f} s)",
        ),
        ("refused with 503", f"{over.statuses[503] / over.statuses.total():.0%} of {over.statuses.total()}"),
        ("other statuses (0: no response)", str(others or "none")),
        ("growth of the gateway's memory", f"{growth_bytes / MIB:.0f} MiB"),
        ("time until a request is as fast as before", f"{recovered_seconds:.1f} s"),
    ]
    print(table([f"{times:g} times the capacity for {seconds:g} s, {model}", ""], rows))


if __name__ == "__main__":
    typer.run(main)
