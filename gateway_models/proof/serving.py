"""A Triton that serves some of a repository's models while a command runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.environment import load_settings
from gateway.machine.capacity import Plan
from gateway.machine.gpus import Gpus, find_gpus
from gateway_local.devices import choose_devices
from gateway_local.memory_plan import machine_plan, sized_configs
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.wheel import ensure_runtime
from gateway_local.server import EmbeddedTriton
from gateway_models.blocking_triton import BlockingTriton
from gateway_models.networks.isolation import Report
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import Answered, predict_each
from gateway_models.proof.image_files import NotCompared, parted, resize_for
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Decode
from gateway_models.repository.summary import progress


def measured_triton(
    runtime: TritonRuntime,
    repository: Path,
    models: tuple[str, ...],
    sizes: Plan,
    gpus: Gpus,
    report: Report,
    on_log: Report,
) -> EmbeddedTriton:
    """A Triton of this machine with `models` and no cache."""
    configs = sized_configs(repository, sizes)
    devices = choose_devices(configs, report, images_in_flight=sizes.all_images_in_flight, gpus=gpus)
    return EmbeddedTriton(
        runtime,
        repository,
        on_log=on_log,
        load_models=models,
        cache_bytes=0,
        extra_arguments=devices.arguments,
        environment=devices.environment,
        sizes=sizes,
    )


@contextmanager
def serving(
    repository: Path, models: tuple[str, ...], report: Report, *, url: str | None = None
) -> Iterator[BlockingTriton]:
    """Connect to the Triton at `url`, or start one with `models` and no cache; raises UserError."""
    if url is not None:
        with BlockingTriton(url) as triton:
            yield triton
        return
    runtime = ensure_runtime(default_cache_dir(), report)
    report(f"starting Triton with {', '.join(models) or 'no model'}")
    gpus = find_gpus()
    sizes = machine_plan(load_settings(), repository, gpus=gpus.usable)
    # A failed start shows the last lines of the log.
    with measured_triton(runtime, repository, models, sizes, gpus, report, lambda _: None) as server:
        server.wait_ready(600)
        with BlockingTriton(server.url) as triton:
            yield triton


def classified(
    samples: Sequence[Sample],
    entry: Entry,
    versions: Sequence[int],
    repository: Path,
    report: Report,
    *,
    url: str | None,
    decode: Decode | None = None,
) -> tuple[list[Answered], list[NotCompared]]:
    """The answers by versions of a model, and the images without one; see `serving` for the Triton."""
    ensembles = tuple(map(entry.ensemble_of, versions))
    with serving(repository, ensembles, report, url=url) as triton:
        answers = predict_each(ensembles, triton.address, samples, resize_for(entry, decode))
        return parted(progress(answers, len(samples), "classifying"))
