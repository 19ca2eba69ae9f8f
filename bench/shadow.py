"""`python -m bench.shadow`: what a shadow version costs those who get answers, also while its process is killed.

Two gateways ask one Triton, one with a shadow and one without, in turns and by the same client; then the same again
while the processes of version 2 are killed and mended. An answer that is not 200 ends it. Some 100 s.
"""

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import httpx
import psutil
import typer
from prometheus_client.parser import text_string_to_metric_families

from bench.http_load import HttpLoad
from bench.photos import Photo, coffee
from bench.remote import Remote
from bench.scale import table
from bench.servers import START_SECONDS, gateway_at
from bench.tally import Tally, percentile
from gateway_local.runtime import default_cache_dir, ensure_runtime
from gateway_local.server import EmbeddedTriton
from gateway_models.networks.add import add
from gateway_models.repository.spec import ModelSpec, Serving

MODEL, ARCHITECTURE, CLASSES = "flowers", "mobilenet_v3_small", 1_000
WITHOUT, WITH = "without a shadow", "with a shadow"
WARM_UP_SECONDS, MENDED_SECONDS = 2.0, 60.0


def main(
    percent: Annotated[int, typer.Option(help="Share of the traffic that version 2 looks at.", min=1, max=100)] = 10,
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.5)] = 8.0,
    rounds: Annotated[int, typer.Option(help="Each measures all four once; medians count.", min=1)] = 2,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 2,
) -> None:
    """Print p50, p99 and rates side by side, with the ratio of p99 with a shadow to p99 without one."""
    tallies: dict[tuple[str, bool], list[Tally]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        repository = _repository(folder)
        triton = stack.enter_context(
            EmbeddedTriton(ensure_runtime(default_cache_dir(), _say), repository, on_log=lambda _: None, cache_bytes=0)
        )
        triton.wait_ready(START_SECONDS)
        shadows = {WITHOUT: "", WITH: f"{MODEL}=2:{percent}"}
        senders = {name: stack.enter_context(_sender(triton.url, shadow)) for name, shadow in shadows.items()}
        photo = _answered(senders[WITHOUT][1])
        for sender, _ in senders.values():
            sender.call("run", [photo], WARM_UP_SECONDS, concurrency, 1)
        for number in range(rounds):
            for killed in (False, True):
                for name, (sender, url) in senders.items():
                    if killed:
                        _say(f"killed {_kill(triton)} processes of version 2")
                        _notice(url, photo)
                    tally = sender.call("run", [photo], seconds, concurrency, 1)
                    tallies.setdefault((name, killed), []).append(tally)
                    _say(f"round {number + 1}, {_title(name, killed=killed)}: p99 {_milliseconds([tally], 99)}")
        outcomes = _outcomes(senders[WITH][1])
    print(table(["", "images/s", "p50", "p99", "p99 beside none", "least – most"], list(_rows(tallies))))
    print(f"\nfailed requests: 0; images for the shadow: {outcomes}")


def _repository(folder: Path) -> Path:
    """A model with two versions, untrained: what they say does not matter, only that they say it always."""
    import torch
    import torchvision

    (folder / "labels.txt").write_text("".join(f"class {number}\n" for number in range(CLASSES)))
    for version in (1, 2):
        torch.manual_seed(version)
        weights = folder / f"{version}.pth"
        network = torchvision.models.get_model(ARCHITECTURE, num_classes=CLASSES)
        torch.nn.init.normal_(network.classifier[-1].bias, std=3.0)  # or nobody would take these for logits
        torch.save(network.state_dict(), weights)
        request = ModelSpec(
            source=f"torchvision:{ARCHITECTURE}",
            weights=str(weights),
            name=MODEL,
            labels=folder / "labels.txt",
            serving=Serving(instances=1, preprocessor_instances=1, cache=False),
            version=None if version == 1 else version,
        )
        add(request, folder / "models", _say)
    return folder / "models"


@contextmanager
def _sender(triton_url: str, shadow: str) -> Iterator[tuple[Remote, str]]:
    """A gateway, who sends to it, and its URL."""
    settings = {"GATEWAY_MODEL": MODEL, "GATEWAY_MODEL_SHADOW": shadow}
    with gateway_at(triton_url, settings=settings) as (url, _), Remote(HttpLoad, url) as sender:
        yield sender, url


def _answered(url: str) -> Photo:
    """The photograph with the label that version 1 gives it."""
    photo = coffee()
    answer = httpx.post(f"{url}/predict", files={"f": (photo.name, photo.data)}, timeout=60).raise_for_status().json()
    return replace(photo, label=answer["results"][0]["predictions"][0]["label"])


def _kill(triton: EmbeddedTriton) -> int:
    """Kill the processes of version 2's network, once there are such again; how many there were."""
    deadline = time.monotonic() + MENDED_SECONDS
    while time.monotonic() < deadline:
        if living := [
            process for process in psutil.Process(triton.pid).children(recursive=True) if _is_shadows(process)
        ]:
            for process in living:
                process.kill()
            return len(living)
        time.sleep(0.1)
    return 0


def _notice(url: str, photo: Photo) -> None:
    """Ask for version 2, so that the gateway loads it again in this measurement: both kinds are to pay for that."""
    httpx.post(f"{url}/predict?version=2", files={"f": (photo.name, photo.data)}, timeout=60)


def _is_shadows(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return any(f"{MODEL}_classifier/2/" in part for part in process.cmdline())
    return False


def _outcomes(url: str) -> str:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=10).text)
    counts = {
        sample.labels["outcome"]: int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "gateway_shadow_images_total"
    }
    return ", ".join(f"{outcome} {count}" for outcome, count in sorted(counts.items())) or "none"


def _rows(tallies: dict[tuple[str, bool], list[Tally]]) -> Iterator[list[str]]:
    for (name, killed), rounds in tallies.items():
        pairs = zip(rounds, tallies[WITHOUT, killed], strict=True)
        ratios = [percentile(a.latencies_seconds, 99) / percentile(b.latencies_seconds, 99) for a, b in pairs]
        yield [
            _title(name, killed=killed),
            f"{statistics.median(each.rate for each in rounds):.0f}",
            _milliseconds(rounds, 50),
            _milliseconds(rounds, 99),
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} – {max(ratios):.2f}",
        ]


def _title(name: str, *, killed: bool) -> str:
    return f"{name}, version 2 killed" if killed else name


def _milliseconds(tallies: list[Tally], percent: int) -> str:
    return f"{1e3 * statistics.median(percentile(each.latencies_seconds, percent) for each in tallies):.1f} ms"


def _say(text: str) -> None:
    print(f"bench | {text}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
