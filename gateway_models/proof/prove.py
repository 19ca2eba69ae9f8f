"""`gateway doctor --run`: whether the service works on this machine, and how fast it is.

One run of the whole service on free ports: its cold start, the equality of its answers with the original's, its
throughput and the costs of an image by stage.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from gateway.errors import UserError
from gateway.findings import Finding, Level, ok, warn
from gateway.machine.capacity import CALL_IMAGES, GPU_BATCH, Costs
from gateway.machine.gpus import find_gpus
from gateway.plugin_loading import hooks, needs_key
from gateway.server.serve import bound
from gateway.server.workers import Workers
from gateway.settings import LogLevel, Settings, variable
from gateway.triton.configs import ModelConfig
from gateway_local.children import wait_for_api
from gateway_local.display import Display
from gateway_local.hosts import LOOPBACK, free_port
from gateway_local.memory_plan import machine_plan, sized_configs
from gateway_local.model_processes import processes
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from gateway_local.sizing import read, roles
from gateway_local.up import api_plan
from gateway_models.blocking_triton import BlockingTriton
from gateway_models.proof.image_files import image_files, parted
from gateway_models.proof.parity import Parity, compare_served, runs_on_gpu
from gateway_models.proof.serving import measured_triton
from gateway_models.repository.manage import entry_with_version

WARM_UP_SECONDS = 2.0
IN_FLIGHT = 16
"""Single uploads in flight: enough that calls are shared, as under load."""
LEAST_IMAGES = 50
"""Fewest images from which costs are computed."""
WARM_UP_BATCHES, BATCHES = 5, 20
"""Batches of a network that are sent before, and while its time is measured."""
COUNTED_SECONDS = 2.0
"""Longest time after an answer until Triton's statistics count it."""
ANSWER_SECONDS = 60.0
TOLERANCE, TOLERANCE_ON_GPU = 1e-3, 1e-2
"""Largest difference of a probability; on a GPU convolutions may be computed in TF32 (docs/guides/gpu.md)."""
API, TRITON = "the API", "Triton's server"


@dataclass(frozen=True, slots=True)
class Service:
    """A service that was started to be measured."""

    port: int
    triton: EmbeddedTriton
    api: Workers
    image: bytes

    def send(self, seconds: float) -> tuple[list[float], int]:
        """Send single images; the seconds of each that was classified, and the number of others."""
        ends_at = time.monotonic() + seconds

        def client(_: int) -> tuple[list[float], int]:
            answered, failed = [], 0
            while (started := time.monotonic()) < ends_at:
                if self.send_one():
                    answered.append(time.monotonic() - started)
                else:
                    failed += 1
            return answered, failed

        with ThreadPoolExecutor(IN_FLIGHT) as threads:
            found = list(threads.map(client, range(IN_FLIGHT)))
        return [each for answered, _ in found for each in answered], sum(failed for _, failed in found)

    def send_one(self) -> bool:
        """Send the image; whether it was classified."""
        connection = HTTPConnection(LOOPBACK, self.port, timeout=ANSWER_SECONDS)
        with contextlib.closing(connection):
            try:
                connection.request("POST", "/predict", self.image, {"Content-Type": "image/jpeg"})
                return connection.getresponse().status == HTTPStatus.OK
            except (OSError, HTTPException):
                return False

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time so far of the API, of Triton's server, and of each model's processes, by name."""
        found: dict[str, float] = {}
        for name, pid in (*((API, pid) for pid in self.api.pids), (TRITON, self.triton.pid or 0)):
            for each in processes(pid):
                key = each.model.name if each.model else name
                found[key] = found.get(key, 0.0) + each.cpu_seconds
        return found


def prove(
    settings: Settings, repository: Path, runtime: TritonRuntime, sample: Path, display: Display, seconds: float = 10.0
) -> Iterator[Finding]:
    """Run the service for the default model of `settings`, send a JPEG for some seconds, and check everything.

    Raises UserError, TritonRuntimeError or ApiFailed where the service does not even start.
    """
    if needs_key(settings):
        raise UserError("the run sends images without a key: unset GATEWAY_API_KEYS_FILE, or what else requires one")
    os.environ[variable("log_level")] = LogLevel.ERROR.value  # of the API, a child process
    gpus = find_gpus()
    preprocessors, networks = steps_of(repository, settings.model)
    sizes = machine_plan(settings, repository, gpus=gpus.usable)
    ports = {"port": free_port(), **{port.setting: 0 for port in hooks(settings).ports(settings)}}
    settings = settings.model_copy(update={**settings.unset(sizes.settings()), **ports})
    configs = sized_configs(repository, sizes)
    triton = measured_triton(runtime, repository, (settings.model,), sizes, gpus, display.say, display.log)
    started = time.monotonic()
    with triton, ExitStack() as stack:
        with display.waiting("starting Triton"):
            triton.wait_ready(settings.triton_start_timeout_seconds)
        loaded = time.monotonic()
        api = Workers(bound(settings), lambda _, text, __: display.say(text))
        stack.callback(api.stop, 0)
        with display.waiting("starting the API"):
            api.start(api_plan(settings, {"triton_url": triton.url, "load_models": settings.model}))
            wait_for_api(api)
        service = Service(settings.port, triton, api, sample.read_bytes())
        classified, now = service.send_one(), time.monotonic()
        text = (
            f"Triton loaded its models in {loaded - started:.1f} s, an image was classified after {now - started:.1f} s"
        )
        yield _passed("cold start", text, passed=classified)
        with display.waiting("comparing answers with the original model's"):
            yield _parity(repository, settings.model, triton.url, sample)
        with display.waiting("sending images"):
            service.send(WARM_UP_SECONDS)
            before, began = service.cpu_seconds(), time.monotonic()
            times, failed = service.send(seconds)
            took, after = time.monotonic() - began, service.cpu_seconds()
        yield _throughput(times, failed, took)
        with display.waiting("sending batches to the network"):
            size = GPU_BATCH if gpus.usable else CALL_IMAGES
            with BlockingTriton(triton.url) as client:
                batch_ms = batch_milliseconds(client, networks[0], configs[networks[0]], size)
        spent = {name: 1e3 * (value - before.get(name, 0.0)) / max(1, len(times)) for name, value in after.items()}
        costs = _costs(spent, preprocessors, networks, batch_ms if gpus.usable else None)
        yield _stages(spent, batch_ms, costs, on_gpu=gpus.usable > 0, enough=len(times) >= LEAST_IMAGES)


def steps_of(repository: Path, model: str) -> tuple[list[str], list[str]]:
    """The preprocessors of an ensemble, and its network with the post-processing steps."""
    configs = {name: config for name, (_, config) in read(repository).items()}
    found = roles({model: configs[model]}) if model in configs else {}
    preprocessors = [name for name, is_preprocessor in found.items() if is_preprocessor]
    networks = [name for name, is_preprocessor in found.items() if not is_preprocessor]
    if not preprocessors or not networks:
        raise UserError(f"{repository} has no ensemble {model!r} of a preprocessor and a network")
    return preprocessors, networks


def batch_milliseconds(triton: BlockingTriton, name: str, config: ModelConfig, size: int) -> float:
    """Milliseconds of one image in batches of up to `size` in a network, from Triton's own statistics.

    One call at a time, so that no other instance shares the GPU: its copies to the device, its computation and the
    copies back. Raises UserError or TritonRefused.
    """
    size = min(size, config.max_batch_size) or 1

    def spent_after(executions: int) -> tuple[int, int]:
        """Executions of this size and their nanoseconds: Triton counts a batch shortly after its answer."""
        until = time.monotonic() + COUNTED_SECONDS
        while (now := triton.spent(name, size))[0] < executions and time.monotonic() < until:
            time.sleep(0.01)
        return now

    after = triton.spent(name, size)
    for sent in (WARM_UP_BATCHES, BATCHES):
        before = after
        for _ in range(sent):
            triton.infer_zeros(name, config, size)
        after = spent_after(before[0] + sent)
    executions, nanoseconds = after[0] - before[0], after[1] - before[1]
    if executions < BATCHES:
        raise UserError(f"{name} ran {executions} of {BATCHES} batches of {size}")
    return nanoseconds / executions / size / 1e6


def _passed(check: str, text: str, *, passed: bool) -> Finding:
    return Finding(check, Level.OK if passed else Level.FAIL, text)


def _parity(repository: Path, model: str, url: str, sample: Path) -> Finding:
    try:
        entry = entry_with_version(repository, model, None)
        with BlockingTriton(url) as triton:
            on_gpu = runs_on_gpu(entry, triton)
            results = compare_served(entry, entry.in_use, triton, image_files([sample]))
            found = Parity(*parted(results), on_gpu)
    except UserError as exc:
        return warn("verify", f"not checked: {exc}")
    tolerance = TOLERANCE_ON_GPU if on_gpu else TOLERANCE
    text = (
        f"largest difference of a probability from the original on the CPU: {found.largest:.2g}, allowed {tolerance:g}"
    )
    return _passed("verify", text, passed=found.holds(tolerance))


def _throughput(times: list[float], failed: int, took: float) -> Finding:
    if len(times) < 2:
        return _passed("throughput", f"{len(times)} images were classified, and {failed} failed", passed=False)
    cuts = statistics.quantiles(times, n=100)
    text = (
        f"{len(times) / took:,.0f} images/s, p50 {1e3 * cuts[49]:.0f} ms, p99 {1e3 * cuts[98]:.0f} ms, {failed} failed"
    )
    return _passed("throughput", text, passed=not failed)


def _costs(spent: dict[str, float], preprocessors: list[str], networks: list[str], gpu_ms: float | None) -> Costs:
    def milliseconds(*names: str) -> float:
        return round(max(0.01, sum(spent.get(name, 0.0) for name in names)), 2)

    gateway_ms, preprocessor_ms = milliseconds(API), milliseconds(*preprocessors)
    if gpu_ms is None:
        return Costs(gateway_ms, milliseconds(TRITON), preprocessor_ms, milliseconds(*networks))
    # For a network on a GPU, only Triton's own time with NVIDIA's backends counts; a core's was not measured.
    triton_ms = milliseconds(TRITON, *networks)
    return Costs(gateway_ms, triton_ms, preprocessor_ms, gpu_network_ms=round(gpu_ms, 4))


def _stages(spent: dict[str, float], batch_ms: float, costs: Costs, *, on_gpu: bool, enough: bool) -> Finding:
    """Processor time of an image by stage, and the network's own time in a batch."""
    lines = [f"{value:.2f} ms of a core for an image: {name}" for name, value in sorted(spent.items())]
    where = "of a GPU" if on_gpu else "of one instance on the CPU"
    lines.append(f"{batch_ms:.3g} ms {where} for an image of a batch, up to {1_000 / batch_ms:,.0f} images/s")
    if not enough:
        return warn("costs", "\n".join([*lines, f"fewer than {LEAST_IMAGES} images were classified"]))
    lines.append(f"to size processes by them: {variable('costs')}={costs.text}")
    return ok("costs", "\n".join(lines))
