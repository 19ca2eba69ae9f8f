"""Triton and the API together, from one command on one machine."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from gateway.environment import load_settings
from gateway.errors import UserError
from gateway.machine.gpus import Gpus, find_gpus
from gateway.machine.memory import killed_for_memory
from gateway.machine.service_record import ServiceRecord
from gateway.plugin_loading import hooks, needs_key
from gateway.server.serve import check_address
from gateway.server.workers import Plan, Refused, Reloads, hung_up
from gateway.settings import LocalTritonSettings, Settings, variable
from gateway.triton.contract import CLASSIFIER
from gateway.triton.health.state import ALL
from gateway_local import elastic
from gateway_local.api_process import ApiProcess
from gateway_local.children import Child
from gateway_local.default_model import default_model
from gateway_local.devices import choose_devices
from gateway_local.display import STATUS_PREFIX, Display, Say
from gateway_local.groups import REAPER
from gateway_local.hosts import LOOPBACK, authority
from gateway_local.memory_plan import StartPlan, models_to_start, plan_start, sized_configs
from gateway_local.paths import default_cache_dir, install_models, sample_image
from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.wheel import ensure_runtime, is_fetched
from gateway_local.server import EmbeddedTriton, StartFailed
from gateway_local.server_log import concerns_a_gpu_alone
from gateway_local.supervisor import Readiness, Supervisor
from gateway_local.tuning import runtimes

POLL_SECONDS = 0.5
CHECK_SECONDS, REPORT_SECONDS = 1.0, 60.0
"""Time between two checks of files and of processes killed by the kernel, and between two reports of these."""
IF_LATE = "If it was still loading models, give it longer with GATEWAY_TRITON_START_TIMEOUT_SECONDS"


class UpFailed(UserError):
    """A step of the start failed, or Triton ended by itself; the message names the step."""


def up(
    settings: Settings, model_repository: Path, *, display: Display, triton_port: int = 0, log: Path | None = None
) -> None:
    """Start Triton and the API, print the URL, keep both running, and stop both cleanly on SIGINT or SIGTERM.

    SIGHUP replaces the API's workers; a second signal to stop ends everything at once. `display` gets the progress and
    Triton's log, which goes to the file `log`; `triton_port` is for gRPC, 0 takes a free one. Raises AddressUnusable,
    NoDefaultModel, UpFailed, TritonRuntimeError, ApiFailed or GivenUp.
    """
    started = time.monotonic()
    say = display.say
    check_address(settings)
    if settings.triton_ca_file is not None:
        raise UpFailed(
            f"{variable('triton_ca_file')} is set, and the Triton of gateway up speaks without TLS on this machine: "
            "unset it, or use gateway serve for a Triton elsewhere"
        )
    install_models(model_repository, say)
    name = default_model(model_repository, settings)
    if name != settings.model:
        say(f"{name} answers when a request names no model: the repository has no other")
        settings = settings.model_copy(update={"model": name})
    gpus = find_gpus()
    triton, plan = _triton(settings, model_repository, display, gpus, ports=(triton_port, 0, 0))
    settings = plan.settings
    own = {"model_repository": model_repository.resolve()}
    fields = {"model_repository": str(own["model_repository"]), **({"log": str(log)} if log else {})}
    record = ServiceRecord(settings.port, command="up", host=settings.host, ready=False, **fields)
    children: list[Child | ApiProcess] = [triton]
    with _recorded(record), _stopping(children, display):

        def start_api() -> None:
            # Beside Triton, whose address is known once its process runs.
            api = ApiProcess(settings, triton.url, say=say, load_models=",".join(triton.load_models))
            children.append(api)
            api.start({**plan.changed, **own})

        _start(triton, model_repository, display, settings, meanwhile=start_api)
        api = children[-1]
        assert isinstance(api, ApiProcess)
        with display.waiting("starting the API"):
            api.wait_ready()
        record.update(ready=True, triton=triton.url)
        address = f"http://{authority(settings.host, settings.port)}"
        say(f"ready after {time.monotonic() - started:.1f} s: open {address}/ or try")
        say(f"  {request(settings, address)}")
        for port in hooks(settings).ports(settings):
            say(f"{port.purpose}: {authority(settings.host, port.number)}")
        say(f"next: every request with a form at {address}/docs; `{program()} up FILE --labels FILE` adds a model")
        for text in runtimes(model_repository, settings.model, gpus=gpus.usable):
            say(text)
        say("Ctrl-C stops everything")

        def replanned() -> Plan:
            try:
                new, changed = _reread(settings, plan.changed)
                return api.plan(new, {**changed, **own})
            except (UserError, OSError) as exc:
                raise Refused("; ".join(map(str, exc.args))) from exc

        reloads = api.reloads(replanned, record.reloaded)
        terminal = sys.stderr.isatty()

        def hang_up(number: int, frame: FrameType | None) -> None:
            if hung_up(terminal):
                _interrupt(number, frame)
            reloads.ask()

        signal.signal(signal.SIGHUP, hang_up)
        _keep_running(triton, settings, say, api, Readiness(api.readiness, say), reloads)


TRITONS = (*LocalTritonSettings.model_fields, "cores", "costs", "load_models", "max_image_pixels", "model")
"""Settings with which Triton is started, and its default model."""


def _reread(old: Settings, computed: Mapping[str, object]) -> tuple[Settings, Mapping[str, object]]:
    """The settings as they are now, and those of `computed` that are not set; raises UserError or Refused."""
    new = load_settings()
    hooks(new).check(new)
    changed = new.unset(computed)
    if "model" not in new.model_fields_set:  # then `old` has the repository's
        new = new.model_copy(update={"model": old.model})
    new = new.model_copy(update=changed)
    if fixed := [variable(field) for field in TRITONS if getattr(new, field) != getattr(old, field)]:
        raise Refused(f"{', '.join(fixed)} concerns Triton, and needs a restart: gateway stop, then gateway up")
    return new, changed


def run_triton(
    settings: Settings,
    model_repository: Path,
    *,
    host: str,
    ports: tuple[int, int, int],
    display: Display,
    arguments: Sequence[str] = (),
) -> None:
    """Run Triton alone on (gRPC, HTTP, metrics) ports until a signal, and start it again if it dies or hangs.

    Raises TritonRuntimeError, UpFailed or GivenUp.
    """
    install_models(model_repository, display.say)
    triton, _ = _triton(
        settings, model_repository, display, find_gpus(), host=host, ports=ports, arguments=arguments, alone=True
    )
    with _stopping([triton], display):
        _start(triton, model_repository, display, settings)
        _keep_running(triton, settings, display.say)


def _triton(
    settings: Settings,
    model_repository: Path,
    display: Display,
    gpus: Gpus,
    *,
    ports: tuple[int, int, int],
    host: str = LOOPBACK,
    arguments: Sequence[str] = (),
    alone: bool = False,
) -> tuple[EmbeddedTriton, StartPlan]:
    """A Triton for this machine that was not started, and the plan that it is sized by."""
    runtime = _prepare(settings, model_repository, display)
    if not gpus.usable:
        elastic.update(model_repository, display.say)
    plan = plan_start(settings, model_repository, display.say, gpus=gpus.usable, with_gateway=not alone)
    in_flight = plan.settings.workers * plan.settings.max_images_in_flight
    configs = sized_configs(model_repository, plan.sizes)
    devices = choose_devices(configs, display.say, images_in_flight=in_flight, gpus=lambda: gpus)

    def log(line: str) -> None:
        # On a machine without a usable GPU, errors about missing GPUs are left out.
        if gpus.usable or not concerns_a_gpu_alone(line):
            display.log(line)

    grpc_port, http_port, metrics_port = ports
    triton = EmbeddedTriton(
        runtime,
        model_repository,
        on_log=log,
        host=host,
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        cache_bytes=plan.settings.triton_cache_bytes,
        load_models=(ALL,) if alone else models_to_start(plan.settings, configs, model_repository),
        extra_arguments=(*devices.arguments, *arguments),
        environment=devices.environment,
        sizes=plan.sizes,
    )
    return triton, plan


def _start(
    triton: EmbeddedTriton,
    model_repository: Path,
    display: Display,
    settings: Settings,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    loading = time.monotonic()
    with display.waiting(f"starting Triton with the models of {model_repository}"):
        start(triton, display.say, settings.triton_start_timeout_seconds, meanwhile)
    took = time.monotonic() - loading
    display.say(f"Triton has loaded its models after {took:.1f} s and listens on {triton.url} (gRPC)")


@contextmanager
def _stopping(children: "Sequence[Child | ApiProcess]", display: Display) -> Iterator[None]:
    """Stop the children, the last one first, when the block ends, by a signal or an error."""
    # SIGINT too: a shell starts background jobs with SIGINT ignored, and Python would keep ignoring it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        yield
    except Stopped as stopped:
        display.say(f"stopping after {stopped}; Ctrl-C again ends everything at once")
    finally:

        def force(*_: object) -> None:
            # Only calls that are safe inside a handler: the code that waits for the children continues once they end.
            for child in children:
                child.kill()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, force)
        stopping = time.monotonic()
        for child in reversed(children):
            with display.waiting(f"stopping {child.name}"):
                child.stop()
        display.say(f"stopped after {time.monotonic() - stopping:.1f} s")


@contextmanager
def _recorded(record: ServiceRecord) -> Iterator[None]:
    try:
        yield
    finally:
        record.remove()


def _keep_running(
    triton: EmbeddedTriton, settings: Settings, say: Say, *checks: "ApiProcess | Readiness | Reloads"
) -> None:
    """Apply the checks until one raises GivenUp, or a signal interrupts."""
    supervisor = Supervisor(triton, say, start_timeout_seconds=settings.triton_start_timeout_seconds)
    memory, sizes_at = KillReports(say), 0.0
    while True:
        for each in (supervisor, *checks, memory):
            each.check()
        REAPER.check()
        if time.monotonic() >= sizes_at:  # the repository may be on a slow network disk
            triton.update_sizes()
            sizes_at = time.monotonic() + CHECK_SECONDS
        time.sleep(POLL_SECONDS)


def start(
    triton: EmbeddedTriton, say: Say, timeout_seconds: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Start Triton, call `meanwhile`, and wait until Triton is ready; raises StartFailed.

    A Triton that crashes meanwhile is started once more: on a busy machine its Python backend crashes if a model's
    process does not report in time. A Triton that exits by itself would exit again.
    """
    killed = killed_for_memory()
    triton.start()
    meanwhile()
    try:
        triton.wait_ready(timeout_seconds)
    except StartFailed as exc:
        if (more := killed_for_memory()) > killed:
            raise StartFailed(*exc.args, killed_text(more - killed)) from exc
        code = triton.poll()
        if code is None:
            raise StartFailed(*exc.args, IF_LATE) from exc
        if code >= 0:
            raise
        say(f"Triton crashed while it started (signal {-code}); starting it once more")
        triton.stop(0)
        triton.start()
        triton.wait_ready(timeout_seconds)


class KillReports:
    """Reports processes that the kernel kills because memory runs out, at most once a minute."""

    def __init__(self, say: Say, killed: Callable[[], int] = killed_for_memory) -> None:
        self._say = say
        self._killed = killed
        self._reported = killed()
        self._next = 0.0

    def check(self) -> None:
        """Report processes killed since the last call; call this periodically."""
        if time.monotonic() < self._next:
            return
        killed = self._killed()
        self._next = time.monotonic() + (REPORT_SECONDS if killed > self._reported else CHECK_SECONDS)
        if killed > self._reported:
            self._say(f"warning: {killed_text(killed - self._reported)}")
        self._reported = killed


def killed_text(count: int) -> str:
    """How many processes the kernel killed, and what to do."""
    return (
        f"memory ran out, and the kernel killed {count} process{'es' * (count > 1)}: `gateway doctor` shows what the "
        "models need and how to make them need less"
    )


def request(settings: Settings, address: str) -> str:
    """An example request, as a shell command."""
    key = "-H 'X-API-Key: KEY' " if needs_key(settings) else ""
    return f"curl {key}-F files=@{sample_image()} {address}/predict"


def _prepare(settings: Settings, model_repository: Path, display: Display) -> TritonRuntime:
    """Fetch Triton's binaries, and export the default model if the repository's classifier has none yet."""
    # The preprocessor's OpenCV reads this at import, and so has the same pixel limit as the gateway.
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(settings.max_image_pixels))
    cache_dir = default_cache_dir()
    began, fetched = time.monotonic(), is_fetched(cache_dir)
    with nullcontext() if fetched else display.waiting("preparing Triton"):
        runtime = ensure_runtime(cache_dir, display.say)
    if not fetched:
        display.say(f"Triton was fetched in {time.monotonic() - began:.1f} s")
    classifier = model_repository / CLASSIFIER
    if classifier.is_dir() and not any(classifier.glob("*/model.*")):
        # In a process of its own: this process runs as long as the server, and would keep torch in memory.
        words = ["model", "add", "default", f"--model-repository={model_repository}"]
        began = time.monotonic()
        with display.waiting("preparing the default model"):
            code = run_aloud([sys.executable, "-m", "gateway_cli", *words], display.say)
        if code:
            raise UpFailed("the default model could not be exported; see above")
        display.say(f"the default model was prepared in {time.monotonic() - began:.1f} s")
    return runtime


def run_aloud(command: Sequence[str], say: Say) -> int:
    """Run a command of this project and pass its output to the display line by line; returns its exit code."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if text := line.rstrip().removeprefix(STATUS_PREFIX):
                say(text)
    return process.returncode


def program() -> str:
    """How a shell in this folder runs this program: by its name, or by its path if it is not in PATH."""
    path = Path(sys.argv[0]).absolute()
    found = shutil.which(path.name)
    return path.name if found and Path(found).samefile(path) else os.path.relpath(path)


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM has arrived; the message is its name."""


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature of a signal handler
    raise Stopped(signal.Signals(number).name)
