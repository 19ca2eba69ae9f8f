"""`gateway prove`: whether the service works on this machine, how fast it is, and whether it recovers.

One run of the whole service on free ports: its devices and sizes, its cold start, the equality of its answers with the
original's, its throughput by stage and its latency, its memory, and a killed process of a model.
"""

import html
import os
import platform
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import gateway
from gateway.errors import UserError
from gateway.plugins import ports_of
from gateway.settings import LogLevel, Settings, variable
from gateway.triton.model_config import read_model_configs
from gateway_local.api_process import ApiProcess
from gateway_local.config_text import parse
from gateway_local.cost_record import (
    API,
    TRITON,
    NotMeasured,
    Sent,
    batch_milliseconds,
    cpu_seconds,
    model_pids,
    numbered,
    send_images,
    steps_of,
)
from gateway_local.cpu_features import cpu_name
from gateway_local.devices import choose_devices
from gateway_local.display import Display
from gateway_local.hosts import LOOPBACK, free_port
from gateway_local.memory_plan import machine_plan, sized_configs
from gateway_local.model_processes import model_processes
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from gateway_local.sizing import CONFIG
from gateway_machine.capacity import CALL_IMAGES, GPU_BATCH, MIB
from gateway_machine.cores import usable_cores
from gateway_machine.gpus import Gpus, find_gpus, gpu_fault
from gateway_machine.memory import usable_memory
from gateway_models.blocking_triton import BlockingTriton
from gateway_models.proof.html_page import page
from gateway_models.proof.image_files import NotCompared, image_files, read_image_files, resize_for
from gateway_models.proof.parity import Comparison, Parity, compare, runs_on_gpu
from gateway_models.repository.manage import entry_with_version
from gateway_plugins.keys.settings import KeySettings

FORMAT = 1
WARM_UP_SECONDS = 2.0
RECOVERY_SECONDS = 60.0
"""Longest time for a killed process of a model to be replaced, and for images to be classified again."""
ANSWERS_AFTER = 20
"""Images in a row that must be classified before a killed process counts as recovered from."""
TOLERANCE, TOLERANCE_ON_GPU = 1e-3, 1e-2
"""Largest difference of a probability; on a GPU convolutions may be computed in TF32 (docs/guides/gpu.md)."""


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the proof."""

    name: str
    passed: bool | None
    """None if it was not possible here; `lines` say why."""
    lines: Sequence[str]
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proof:
    """All checks of one run, and what they were made on."""

    machine: Mapping[str, Any]
    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(each.passed is not False for each in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The report as a document."""
        checks = [asdict(each) for each in self.checks]
        return {"format": FORMAT, "passed": self.passed, "machine": dict(self.machine), "checks": checks}

    def as_text(self) -> list[str]:
        """The report as lines."""
        lines = [f"{name}: {value}" for name, value in self.machine.items()]
        for each in self.checks:
            lines += ["", f"{_verdict(each)}  {each.name}", *(f"        {line}" for line in each.lines)]
        return [*lines, "", "passed" if self.passed else "FAILED"]

    def as_html(self) -> str:
        """The report as a page without references to others."""
        machine = "".join(f"<tr><th>{name}<td>{html.escape(str(value))}" for name, value in self.machine.items())
        rows = "".join(
            f"<tr><td>{_verdict(each)}<th>{html.escape(each.name)}<td>{'<br>'.join(map(html.escape, each.lines))}"
            for each in self.checks
        )
        style = "th { text-align: left; font-weight: 600 } td, th { padding: .3rem .8rem; vertical-align: top }"
        verdict = "passed" if self.passed else "failed"
        return page(f"gateway prove: {verdict}", f"<table>{machine}</table><table>{rows}</table>", style)


def _verdict(check: Check) -> str:
    return {True: "ok", False: "FAIL", None: "skip"}[check.passed]


def prove(
    settings: Settings, repository: Path, runtime: TritonRuntime, sample: Path, display: Display, *, seconds: float
) -> Proof:
    """Run the service for the default model of `settings`, send a JPEG for some seconds, and check everything.

    Raises NotMeasured, TritonRuntimeError or ApiFailed where the service does not even start.
    """
    if KeySettings.of(settings).api_keys_file is not None:
        raise NotMeasured(f"the proof sends images without a key: unset {variable('api_keys_file')} for it")
    os.environ[variable("log_level")] = LogLevel.ERROR.value  # of the API, a child process
    gpus = find_gpus()
    checks = [_devices(gpus)]
    preprocessors, networks = steps_of(repository, settings.model)
    sizes = machine_plan(settings, repository, gpus=gpus.usable)
    checks.append(
        Check(
            "sizes",
            passed=True,
            lines=sizes.explained(),
            figures={"planned_images_per_second": sizes.images_per_second},
        )
    )
    ports = {"port": free_port(), **{port.setting: 0 for port in ports_of(settings)}}
    settings = settings.model_copy(update={**settings.unset(sizes.settings()), **ports})
    configs = sized_configs(repository, sizes)
    devices = choose_devices(configs, display.say, images_in_flight=sizes.all_images_in_flight, gpus=lambda: gpus)
    triton = EmbeddedTriton(
        runtime,
        repository,
        on_log=display.log,
        cache_bytes=0,
        load_models=(settings.model,),
        extra_arguments=devices.arguments,
        environment=devices.environment,
        sizes=sizes,
    )
    started = time.monotonic()
    with triton, ExitStack() as stack:
        with display.waiting("starting Triton"):
            triton.wait_ready(settings.triton_start_timeout_seconds)
        loaded = time.monotonic()
        api = ApiProcess(settings, triton.url, load_models=settings.model)
        stack.callback(api.stop, 0)
        with display.waiting("starting the API"):
            api.start()
            api.wait_ready()
        image = sample.read_bytes()
        first = send_one(settings.port, image)
        checks.append(_cold_start(started, loaded, classified=first))
        assert api.pid is not None
        assert triton.pid is not None
        with display.waiting("comparing answers with the original model's"):
            checks.append(_parity(repository, settings.model, triton.url, sample))
        with display.waiting("sending images"):
            send_images(settings.port, image, WARM_UP_SECONDS)
            before, began = cpu_seconds(api.pid, triton.pid), time.monotonic()
            sent = send_images(settings.port, image, seconds)
            took, after = time.monotonic() - began, cpu_seconds(api.pid, triton.pid)
        checks.append(_throughput(sent, took))
        checks.append(_stages({name: after[name] - before.get(name, 0.0) for name in after}, len(sent.seconds)))
        with display.waiting("sending batches to the network"):
            config = parse((repository / networks[0] / CONFIG).read_text())
            size = GPU_BATCH if gpus.usable else CALL_IMAGES
            milliseconds = batch_milliseconds(triton.http_url, networks[0], config, size)
        where = "of a GPU" if gpus.usable else "of one instance on the CPU"
        text = f"{milliseconds:.3g} ms {where} for an image of a batch, up to {1_000 / milliseconds:,.0f} images/s"
        checks.append(Check("network", passed=True, lines=[text], figures={"network_ms": milliseconds}))
        checks.append(_memory(triton.pid))
        with display.waiting("killing a process of the preprocessor"):
            checks.append(_recovery(settings.port, image, triton.pid, preprocessors[0]))
    return Proof(_machine(gpus, settings, repository), checks)


def _machine(gpus: Gpus, settings: Settings, repository: Path) -> dict[str, Any]:
    memory = usable_memory()
    configs = read_model_configs(repository)
    _, networks = steps_of(repository, settings.model)
    network = configs[networks[0]]
    return {
        "version": gateway.__version__,
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "processor": cpu_name(),
        "cores": usable_cores(),
        "memory": f"{memory.limit_bytes // MIB:,} MiB" if memory else "unknown",
        "gpus": gpus.usable,
        "driver": ".".join(map(str, gpus.driver_cuda)) if gpus.driver_cuda else "none",
        "model": f"{settings.model}, {network.name} by {network.backend or network.platform}",
    }


def _devices(gpus: Gpus) -> Check:
    if gpus.usable:
        return Check("devices", passed=True, lines=[f"{gpus.usable} GPUs can be used"], figures={"gpus": gpus.usable})
    if gpus.count:
        return Check("devices", passed=False, lines=[f"{gpus.count} GPUs are here and cannot be used: {gpus.why_not}"])
    return Check(
        "devices", passed=None if not gpus.fault else False, lines=[f"no GPU: {gpu_fault()}"], figures={"gpus": 0}
    )


def _cold_start(started: float, loaded: float, *, classified: bool) -> Check:
    ready = time.monotonic()
    text = f"Triton had loaded its models after {loaded - started:.1f} s, and an image was classified after "
    figures = {"triton_seconds": loaded - started, "first_image_seconds": ready - started}
    return Check("cold start", classified, [f"{text}{ready - started:.1f} s"], figures)


def _parity(repository: Path, model: str, url: str, sample: Path) -> Check:
    try:
        entry = entry_with_version(repository, model, None)
        with BlockingTriton(url) as triton:
            files = read_image_files(image_files([sample]), resize_for(entry))
            results = list(compare(entry, entry.in_use, triton, files))
            on_gpu = runs_on_gpu(entry, triton)
    except UserError as exc:
        return Check("parity", passed=None, lines=[f"not checked: {exc}"])
    refused = [each for each in results if isinstance(each, NotCompared)]
    found = Parity([each for each in results if isinstance(each, Comparison)], refused, on_gpu)
    tolerance = TOLERANCE_ON_GPU if on_gpu else TOLERANCE
    text = (
        f"largest difference of a probability from the original on the CPU: {found.largest:.2g}, allowed {tolerance:g}"
    )
    return Check("parity", found.holds(tolerance), [text], {"largest_difference": found.largest})


def _throughput(sent: Sent, took: float) -> Check:
    if len(sent.seconds) < 2:
        return Check(
            "throughput", passed=False, lines=[f"{len(sent.seconds)} images were classified, and {sent.failed} failed"]
        )
    cuts = statistics.quantiles(sent.seconds, n=100)
    figures = {
        "images_per_second": len(sent.seconds) / took,
        "p50_ms": 1e3 * cuts[49],
        "p99_ms": 1e3 * cuts[98],
        "failed": sent.failed,
    }
    text = (
        f"{figures['images_per_second']:,.0f} images/s, p50 {figures['p50_ms']:.0f} ms, "
        f"p99 {figures['p99_ms']:.0f} ms, {sent.failed} failed"
    )
    return Check("throughput", not sent.failed, [text], figures)


def _stages(spent: Mapping[str, float], images: int) -> Check:
    """Processor time of an image by stage."""
    names = [API, TRITON, *sorted(spent.keys() - {API, TRITON})]
    figures = {f"{name} ms": 1e3 * spent.get(name, 0.0) / max(1, images) for name in names}
    lines = [f"{each:.2f} ms of a core for an image: {name.removesuffix(' ms')}" for name, each in figures.items()]
    return Check("stages", passed=True if images else None, lines=lines, figures=figures)


def _memory(triton_pid: int) -> Check:
    peaks: dict[str, float] = {}
    for process in model_processes(triton_pid):
        name = process.folder.name
        peaks[name] = max(peaks.get(name, 0.0), process.peak_bytes / MIB)
    lines = [f"{peak:,.0f} MiB at most in a process of {model}" for model, peak in sorted(peaks.items())]
    return Check("memory", passed=True if peaks else None, lines=lines or ["no model has a process"], figures=peaks)


def _recovery(port: int, image: bytes, triton_pid: int, model: str) -> Check:
    """Kill one process of a model; it must be replaced, and images must be classified again."""
    before = model_pids(triton_pid, model)
    if not before:
        return Check("killed process", passed=None, lines=[f"{model} has no process of its own"])
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    started = last_failure = time.monotonic()
    failed, answered = 0, 0
    for ok in _answers(port, image, started + RECOVERY_SECONDS):
        answered = answered + 1 if ok else 0
        if not ok:
            failed, last_failure = failed + 1, time.monotonic()
        there = model_pids(triton_pid, model)
        if answered >= ANSWERS_AFTER and killed not in there and len(there) >= len(before):
            seconds = time.monotonic() - started
            text = (
                f"a process of {model} was killed, and replaced after at most {seconds:.1f} s; {failed} images failed, "
                f"the last after {last_failure - started:.1f} s"
            )
            return Check("killed process", passed=True, lines=[text], figures={"seconds": seconds, "failed": failed})
    lines = [f"a process of {model} was killed, and {RECOVERY_SECONDS:g} s later not replaced; {failed} images failed"]
    return Check("killed process", passed=False, lines=lines, figures={"failed": failed})


def _answers(port: int, image: bytes, until: float) -> Iterator[bool]:
    number = 0
    while time.monotonic() < until:
        number += 1
        yield send_one(port, numbered(image, number))


def send_one(port: int, image: bytes) -> bool:
    """Send one image; whether it was classified."""
    connection = HTTPConnection(LOOPBACK, port, timeout=RECOVERY_SECONDS)
    try:
        connection.request("POST", "/predict", image, {"Content-Type": "image/jpeg"})
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
