"""What an image costs on this machine: measured by a short run of the whole service, and kept in the cache folder."""

import contextlib
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from gateway.errors import UserError
from gateway.plugins import ports_of
from gateway.settings import LogLevel, Settings, variable
from gateway.triton.model_config import read_model_configs
from gateway_local.api_process import ApiProcess
from gateway_local.config_text import Field, parse
from gateway_local.devices import choose_devices
from gateway_local.display import Display
from gateway_local.hosts import LOOPBACK, free_port
from gateway_local.model_processes import STUB
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from gateway_local.sizing import BYTES, CONFIG, read, roles
from gateway_machine.capacity import GPU_BATCH, Costs, plan
from gateway_machine.cores import usable_cores
from gateway_machine.gpus import find_gpus
from gateway_plugins.demand.footprint import version_files
from gateway_plugins.keys.settings import KeySettings
from gateway_plugins.shared.files import whole_file

RECORD = "costs.json"
FORMAT = 1
WARM_UP_SECONDS, SLICE_SECONDS = 2.0, 5.0
SLICES = 3
"""Most slices of time in which images are sent; fewer if ENOUGH_IMAGES were answered."""
ENOUGH_IMAGES, LEAST_IMAGES = 500, 50
WARM_UP_BATCHES, BATCHES = 5, 20
"""Batches of a network that are sent before, and while its time on a GPU is measured."""
IN_FLIGHT = 16
"""Single uploads in flight: enough that calls are shared, as under load."""
API, TRITON = "the API", "Triton's server"
TICKS = os.sysconf("SC_CLK_TCK")


class NotMeasured(UserError):
    """The costs could not be measured; the message has the reason."""


def recorded_costs(repository: Path, folder: Path | None = None) -> Costs:
    """The costs that `gateway capacity --measure` found with this repository's network; else the default costs."""
    try:
        document = json.loads(((folder or default_cache_dir()) / RECORD).read_bytes())
        network = repository.resolve() / document["network"]
        if document["format"] == FORMAT and document["fingerprint"] == fingerprint(network):
            return Costs(**document["costs"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return Costs()


def fingerprint(folder: Path) -> str:
    """Changes with the files of a model's versions."""
    stats = [(str(path.relative_to(folder)), path.stat()) for path in version_files(folder)]
    return hashlib.sha256(repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]).encode()).hexdigest()


def record_costs(costs: Costs, network: Path, folder: Path | None = None) -> None:
    """Store costs that were measured with a network's files."""
    document = {
        "format": FORMAT,
        "network": network.name,
        "fingerprint": fingerprint(network),
        "costs": asdict(costs),
    }
    path = (folder or default_cache_dir()) / RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        draft.write_text(json.dumps(document, indent=2) + "\n")


def batch_milliseconds(server: str, name: str, config: Field, size: int = GPU_BATCH) -> float:
    """Milliseconds of one image in batches of up to `size` in a network, from Triton's own statistics.

    One call at a time, so that no other instance shares the GPU: its copies to the device, its computation and the
    copies back. `server` is the HTTP endpoint, a URL without a path. Raises NotMeasured.
    """
    size = min(size, int(config.first("max_batch_size") or 1)) or 1
    (given,) = config.all("input")
    shape = [size, *(max(1, int(each.value)) for each in given.all("dims"))]
    data_type = given.first("data_type")
    content = bytes(math.prod(shape) * BYTES[data_type])
    tensor = {
        "name": given.first("name"),
        "shape": shape,
        "datatype": data_type.removeprefix("TYPE_"),
        "parameters": {"binary_data_size": len(content)},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    connection = HTTPConnection(server.removeprefix("http://"), timeout=60)

    def spent() -> tuple[int, int]:
        """Executions of this batch size, and their nanoseconds."""
        (model,) = json.loads(_asked(connection, "GET", f"/v2/models/{name}/stats"))["model_stats"][-1:]
        (of_size,) = [each for each in model["batch_stats"] if each["batch_size"] == size] or [None]
        if of_size is None:
            return 0, 0
        parts = ("compute_input", "compute_infer", "compute_output")
        return of_size["compute_infer"]["count"], sum(of_size[part]["ns"] for part in parts)

    with contextlib.closing(connection):
        for counted in (WARM_UP_BATCHES, BATCHES):
            before = spent()
            for _ in range(counted):
                _asked(connection, "POST", f"/v2/models/{name}/infer", header + content, headers)
        after = spent()
    executions, nanoseconds = after[0] - before[0], after[1] - before[1]
    if executions < BATCHES:
        raise NotMeasured(f"{name} ran {executions} of {BATCHES} batches of {size}")
    return nanoseconds / executions / size / 1e6


def _asked(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        content = response.read()
    except (OSError, HTTPException) as exc:
        raise NotMeasured(f"Triton did not answer {method} {path}: {exc}") from exc
    if response.status != HTTPStatus.OK:
        raise NotMeasured(f"Triton answered {method} {path} with {response.status}: {content[:300].decode()}")
    return content


def measure_costs(
    settings: Settings, repository: Path, runtime: TritonRuntime, sample: bytes, display: Display
) -> tuple[Costs, Path]:
    """Start the service on free ports, send a JPEG for some seconds, and return the costs and the network's folder.

    Raises NotMeasured, TritonRuntimeError or ApiFailed.
    """
    if KeySettings.of(settings).api_keys_file is not None:
        raise NotMeasured(f"the measurement sends images without a key: unset {variable('api_keys_file')} for it")
    os.environ[variable("log_level")] = LogLevel.ERROR.value  # of the API, a child process
    preprocessors, networks = steps_of(repository, settings.model)
    gpus = find_gpus()
    sizes = plan(usable_cores(), gpus.usable)
    configs = read_model_configs(repository)
    devices = choose_devices(configs, display.say, images_in_flight=sizes.all_images_in_flight, gpus=lambda: gpus)
    gpu_network_ms = None
    settings = settings.model_copy(update={"port": free_port(), **{port.setting: 0 for port in ports_of(settings)}})
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
    with triton, contextlib.ExitStack() as stack:
        with display.waiting("starting Triton"):
            triton.wait_ready(settings.triton_start_timeout_seconds)
        api = ApiProcess(settings, triton.url, load_models=settings.model)
        stack.callback(api.stop, 0)
        with display.waiting("starting the API"):
            api.start()
            api.wait_ready()
        assert api.pid is not None
        assert triton.pid is not None
        with display.waiting("sending images"):
            send_images(settings.port, sample, WARM_UP_SECONDS)
            before, images, slices = cpu_seconds(api.pid, triton.pid), 0, 0
            while images < ENOUGH_IMAGES and slices < SLICES:
                images += len(send_images(settings.port, sample, SLICE_SECONDS).seconds)
                slices += 1
            after = cpu_seconds(api.pid, triton.pid)
        if gpus.usable:
            with display.waiting("sending batches to the network"):
                config = parse((repository / networks[0] / CONFIG).read_text())
                gpu_network_ms = batch_milliseconds(triton.http_url, networks[0], config)
    display.say(f"{images} images in {slices * SLICE_SECONDS:g} s")
    if images < LEAST_IMAGES:
        raise NotMeasured("these are too few to measure their cost")
    spent = {name: 1e3 * (seconds - before.get(name, 0.0)) / images for name, seconds in after.items()}

    def milliseconds(names: Iterable[str]) -> float:
        return round(max(0.01, sum(spent.get(name, 0.0) for name in names)), 2)

    costs = Costs(
        gateway_ms=milliseconds([API]),
        triton_ms=milliseconds([TRITON]),
        preprocessor_ms=milliseconds(preprocessors),
        network_ms=milliseconds(networks),
    )
    if gpu_network_ms is not None:
        # What a network on a GPU takes of the cores is Triton's own time with NVIDIA's backends, and a core's was not
        # measured.
        costs = replace(
            costs,
            triton_ms=milliseconds([TRITON, *networks]),
            network_ms=Costs().network_ms,
            gpu_network_ms=round(gpu_network_ms, 4),
        )
    return costs, repository / networks[0]


def steps_of(repository: Path, model: str) -> tuple[list[str], list[str]]:
    """The preprocessors of an ensemble, and its network with the steps after it."""
    configs = {name: config for name, (_, config) in read(repository).items()}
    found = roles({model: configs[model]}) if model in configs else {}
    preprocessors = [name for name, is_preprocessor in found.items() if is_preprocessor]
    networks = [name for name, is_preprocessor in found.items() if not is_preprocessor]
    if not preprocessors or not networks:
        raise NotMeasured(f"{repository} has no ensemble {model!r} of a preprocessor and a network")
    return preprocessors, networks


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of images that were sent one a request."""

    seconds: tuple[float, ...]
    """Duration of each request that was answered with 200."""
    failed: int


def send_images(port: int, sample: bytes, seconds: float) -> Sent:
    """Send single images for a time, each with other bytes, so that no cache knows them; raises NotMeasured."""
    numbers = itertools.count()
    ends_at = time.monotonic() + seconds

    def client(_: int) -> tuple[list[float], int]:
        answered, failed = [], 0
        connection = HTTPConnection(LOOPBACK, port, timeout=30)
        with contextlib.closing(connection):
            while (started := time.monotonic()) < ends_at:
                connection.request("POST", "/predict", numbered(sample, next(numbers)), {"Content-Type": "image/jpeg"})
                response = connection.getresponse()
                response.read()
                if response.status == HTTPStatus.OK:
                    answered.append(time.monotonic() - started)
                else:
                    failed += 1
        return answered, failed

    try:
        with ThreadPoolExecutor(IN_FLIGHT) as threads:
            found = list(threads.map(client, range(IN_FLIGHT)))
    except (OSError, HTTPException) as exc:
        raise NotMeasured(f"the API on port {port} did not answer: {exc}") from exc
    return Sent(tuple(itertools.chain.from_iterable(each for each, _ in found)), sum(failed for _, failed in found))


def numbered(jpeg: bytes, number: int) -> bytes:
    """A JPEG with a number in a comment behind its first marker (ITU-T T.81, B.2.4.5)."""
    comment = number.to_bytes(8, "big")
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


def cpu_seconds(api_pid: int, triton_pid: int) -> dict[str, float]:
    """Processor time so far of the API, of Triton's server, and of each model's processes, by name."""
    found: dict[str, float] = {}
    for _, name, seconds in _processes(api_pid, triton_pid):
        found[name] = found.get(name, 0.0) + seconds
    return found


def model_pids(triton_pid: int, model: str) -> set[int]:
    """The processes of a model of a Triton that `EmbeddedTriton` started."""
    return {pid for pid, name, _ in _processes(0, triton_pid) if name == model}


def _processes(api_pid: int, triton_pid: int) -> Iterator[tuple[int, str, float]]:
    """Each process of the API and of Triton, with a name and its processor time in seconds."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # After the name in parentheses (proc_pid_stat(5)): the session is field 6, times are fields 14 and 15.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            arguments = (folder / "cmdline").read_text().split("\0")
        except OSError:  # it has ended
            continue
        session, ticks = int(fields[3]), int(fields[11]) + int(fields[12])
        if session not in {api_pid, triton_pid} - {0}:
            continue
        name = API if session == api_pid else TRITON
        if arguments[0].endswith(STUB):
            name = Path(arguments[1]).parents[1].name
        yield int(folder.name), name, ticks / TICKS
