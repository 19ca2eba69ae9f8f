"""What an image costs on this machine: measured by a short run of the whole service, and kept in the cache folder."""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from gateway.capacity import Costs
from gateway.errors import UserError
from gateway.files import whole_file
from gateway.plugins import ports_of
from gateway.settings import LogLevel, Settings, variable
from gateway.triton.model_processes import STUB
from gateway_local.api_process import ApiProcess
from gateway_local.display import Display
from gateway_local.hosts import LOOPBACK, free_port
from gateway_local.memory_record import fingerprint
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.base import Runtime
from gateway_local.server import EmbeddedTriton
from gateway_local.sizing import read, roles

RECORD = "costs.json"
FORMAT = 1
WARM_UP_SECONDS, SLICE_SECONDS = 2.0, 5.0
SLICES = 3
"""Most slices of time in which images are sent; fewer if ENOUGH_IMAGES were answered."""
ENOUGH_IMAGES, LEAST_IMAGES = 500, 50
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


def measure_costs(
    settings: Settings, repository: Path, runtime: Runtime, sample: bytes, display: Display
) -> tuple[Costs, Path]:
    """Start the service on free ports, send a JPEG for some seconds, and return the costs and the network's folder.

    Raises NotMeasured, TritonRuntimeError or ApiFailed.
    """
    if settings.api_keys_file is not None:
        raise NotMeasured(f"the measurement sends images without a key: unset {variable('api_keys_file')} for it")
    os.environ[variable("log_level")] = LogLevel.ERROR.value  # of the API, a child process
    preprocessors, networks = _steps(repository, settings.model)
    settings = settings.model_copy(update={"port": free_port(), **{port.setting: 0 for port in ports_of(settings)}})
    triton = EmbeddedTriton(runtime, repository, on_log=display.log, cache_bytes=0, load_models=(settings.model,))
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
            _send(settings.port, sample, WARM_UP_SECONDS)
            before, images, slices = _cpu_seconds(api.pid, triton.pid), 0, 0
            while images < ENOUGH_IMAGES and slices < SLICES:
                images += _send(settings.port, sample, SLICE_SECONDS)
                slices += 1
            after = _cpu_seconds(api.pid, triton.pid)
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
    return costs, repository / networks[-1]


def _steps(repository: Path, model: str) -> tuple[list[str], list[str]]:
    """The preprocessors and the networks of an ensemble."""
    configs = {name: config for name, (_, config) in read(repository).items()}
    found = roles({model: configs[model]}) if model in configs else {}
    preprocessors = [name for name, is_preprocessor in found.items() if is_preprocessor]
    networks = [name for name, is_preprocessor in found.items() if not is_preprocessor]
    if not preprocessors or not networks:
        raise NotMeasured(f"{repository} has no ensemble {model!r} of a preprocessor and a network")
    return preprocessors, networks


def _send(port: int, sample: bytes, seconds: float) -> int:
    """Send single images, each with other bytes, so that no cache knows them; returns how many were answered."""
    numbers = itertools.count()
    ends_at = time.monotonic() + seconds

    def client(_: int) -> int:
        answered = 0
        connection = HTTPConnection(LOOPBACK, port, timeout=30)
        with contextlib.closing(connection):
            while time.monotonic() < ends_at:
                connection.request("POST", "/predict", numbered(sample, next(numbers)), {"Content-Type": "image/jpeg"})
                response = connection.getresponse()
                response.read()
                answered += response.status == HTTPStatus.OK
        return answered

    try:
        with ThreadPoolExecutor(IN_FLIGHT) as threads:
            return sum(threads.map(client, range(IN_FLIGHT)))
    except (OSError, HTTPException) as exc:
        raise NotMeasured(f"the API on port {port} did not answer: {exc}") from exc


def numbered(jpeg: bytes, number: int) -> bytes:
    """A JPEG with a number in a comment behind its first marker (ITU-T T.81, B.2.4.5)."""
    comment = number.to_bytes(8, "big")
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


def _cpu_seconds(api_pid: int, triton_pid: int) -> dict[str, float]:
    """Processor time so far of the API, of Triton's server, and of each model's processes, by name."""
    found: dict[str, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # After the name in parentheses (proc_pid_stat(5)): the session is field 6, times are fields 14 and 15.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            arguments = (folder / "cmdline").read_text().split("\0")
        except OSError:  # it has ended
            continue
        session, ticks = int(fields[3]), int(fields[11]) + int(fields[12])
        if session not in {api_pid, triton_pid}:
            continue
        name = API if session == api_pid else TRITON
        if arguments[0].endswith(STUB):
            name = Path(arguments[1]).parents[1].name
        found[name] = found.get(name, 0.0) + ticks / TICKS
    return found
