"""Measures this service and other servers of the same network in turns, and makes the tables."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bench import candidates
from bench.candidates import OURS, SINGLES_IN_FLIGHT, Load, Measured
from bench.measurement import Ratio, Series
from bench.output import Progress, table
from bench.peers.environment import AS_WRITTEN, PEERS, environment, peer
from bench.peers.network import ONNX, TORCH
from bench.services import gateway_up

LOADS = [
    Load("one at a time", 1),
    Load("4 in flight", 4),
    Load("32 in flight", 32),
    Load("200 files in one request¹", 1, 200),
    Load("12 megapixels, 8 in flight", 8, size=(4000, 3000, 85)),
]
FASTER = {
    TORCH: "× the faster peer",
    ONNX: "× the faster peer with ONNX Runtime",
    AS_WRITTEN: "× the faster as written",
}
"""Titles of the ratios to the tuned peers with torch and with ONNX Runtime, and to the peers as people write them."""
NOTE = f"\n¹ The peers take one file a request: they get the files as single uploads, {SINGLES_IN_FLIGHT} in flight.\n"


def measure(repository: Path, seconds: float, rounds: int, progress: Progress) -> dict[Load, dict[str, Series]]:
    """Each load's measurements by service, all with the models of a repository."""
    python = environment(progress)
    services = {OURS: gateway_up(repository), **{name: peer(name, python, repository) for name in PEERS}}
    with ExitStack() as stack:
        running = candidates.started(stack, services, progress, one_file=tuple(PEERS))
        return candidates.compare(running, LOADS, seconds, rounds, progress)


def summary(measured: Mapping[str, Measured]) -> str:
    """Images per second, a row for each network and load, with the ratios of this service to the faster peers."""
    names = [OURS, *PEERS]
    rows = []
    for model, loads in measured.items():
        for load, services in loads.items():
            alone = load.files > 1  # a peer's requests have one file each, where this service's have many
            rates = (_rate(services[name], p99=not (alone and name in PEERS)) for name in names)
            ratios = (str(ratio_to_faster_peer(services, group)) for group in FASTER)
            rows.append([model, load.title, *rates, *ratios])
    header = ["network", "load", *names, *(f"{OURS} {title}" for title in FASTER.values())]
    return table(header, rows) + NOTE


def brief(measured: Measured) -> str:
    """What README says: this service, the faster tuned peer with ONNX Runtime, and the faster one as written.

    p99 is in brackets. Loads with several files in a request, which the peers do not take, are left out.
    """
    rows = []
    for load, services in measured.items():
        if load.files == 1:
            faster = max((services[name] for name in _peers(ONNX)), key=lambda each: each.rate)
            ratios = (str(ratio_to_faster_peer(services, group)) for group in (ONNX, AS_WRITTEN))
            rows.append([load.title, _rate(services[OURS]), _rate(faster), *ratios])
    return table(["load", OURS, "tuned peer", "× tuned peer", "× as written"], rows)


def ratio_to_faster_peer(services: Mapping[str, Series], group: str) -> Ratio:
    """The ratio of this service's rate to the rate of the faster peer of a group, in the same round."""
    rounds = zip(*(services[peer] for peer in _peers(group)), strict=True)
    return services[OURS].ratio([max(peers, key=lambda each: each.rate) for peers in rounds])


def _peers(group: str) -> list[str]:
    return [name for name, peer in PEERS.items() if peer.group == group]


def _rate(series: Series, *, p99: bool = True) -> str:
    return f"{series.rate:.0f}/s" + (f" ({series.latency_milliseconds(99):.0f} ms)" if p99 else "")
