"""Triton and the API together, from one command on one machine."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gateway.environment import load_settings
from gateway.errors import UserError
from gateway.findings import Level
from gateway.machine.gpus import Gpus, find_gpus
from gateway.plugin_loading import hooks, needs_key
from gateway.server.serve import plan_of
from gateway.server.workers import Plan, Process
from gateway.settings import LocalTritonSettings, Settings, variable
from gateway.triton.contract import ALL, CLASSIFIER
from gateway_local import elastic
from gateway_local.default_model import default_model
from gateway_local.devices import choose_devices
from gateway_local.display import STATUS_PREFIX, Display, Say
from gateway_local.doctor.repository import models
from gateway_local.hosts import LOOPBACK, authority
from gateway_local.memory_plan import StartPlan, models_to_start, plan_start, sized_configs
from gateway_local.paths import default_cache_dir, install_models, sample_image
from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.wheel import ensure_runtime, is_fetched
from gateway_local.table import Api, Table, become_supervisor

TRITONS = (*LocalTritonSettings.model_fields, "cores", "costs", "load_models", "max_image_pixels", "model")
"""Settings with which Triton is started, and its default model."""


class UpFailed(UserError):
    """A step of the start failed; the message names the step."""


def up(
    settings: Settings,
    model_repository: Path,
    listener: socket.socket,
    process: Process,
    *,
    shown: Mapping[str, Any],
    triton_port: int = 0,
) -> None:
    """Prepare Triton and the API, and become the process that starts them and keeps them running.

    `process` is the first worker's on the socket of the API; `shown` are the arguments of Display; `triton_port` is for
    gRPC, 0 takes a free one. Raises NoDefaultModel, UpFailed or TritonRuntimeError.
    """
    began, display = time.monotonic(), Display(**shown)
    say = display.say
    if log_file := shown.get("log_file"):
        say(f"Triton's log goes to {log_file}; --verbose shows it here")
    configs, found = models(model_repository)
    if configs and found.level is not Level.OK:  # a warning only: Triton decides about the models
        say(f"warning: {found.text.replace(chr(10), ', ')}: {found.advice}")
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
    new = plan.settings
    address = f"http://{authority(new.host, new.port)}"
    fields: dict[str, object] = {"load_models": ",".join(triton["load_models"])}
    fields["model_repository"] = str(model_repository.resolve())
    given = json.dumps({"model": name, "computed": plan.changed, "own": fields, "tritons": _of_triton(new)})
    api = Api(
        api_plan(new, {**plan.changed, **fields}),
        listener.detach(),
        (sys.executable, "-m", "gateway_local.up", given),
        {"model_repository": fields["model_repository"], **({"log": str(log_file)} if log_file else {})},
        (
            f"  {request(new, address)}",
            *(f"{port.purpose}: {authority(new.host, port.number)}" for port in hooks(new).ports(new)),
            f"next: every request with a form at {address}/docs; `{program()} up FILE --labels FILE` adds a model",
        ),
        process,
    )
    become_supervisor(Table(triton, settings.triton_start_timeout_seconds, shown, not gpus.usable, began, api))


def _of_triton(settings: Settings) -> dict[str, str]:
    return {variable(field): str(getattr(settings, field)) for field in TRITONS}


def api_plan(settings: Settings, changed: Mapping[str, object]) -> Plan:
    """The plan of workers with these settings; `changed` has the settings that their environment lacks."""
    ports = {port.setting: port.number for port in hooks(settings).ports(settings)}
    return plan_of(settings, {"port": settings.port, "model": settings.model, **ports, **changed})


def print_plan(given: str) -> None:
    """Print the plan for the current settings, or why there is none, in JSON; `given` comes from `up`."""
    known = json.loads(given)
    answer: object
    try:
        new = load_settings()
        hooks(new).check(new)
        changed = new.unset(known["computed"])
        if "model" not in new.model_fields_set:  # then it is the repository's
            new = new.model_copy(update={"model": known["model"]})
        new = new.model_copy(update=changed)
        if fixed := [name for name, value in _of_triton(new).items() if value != known["tritons"][name]]:
            answer = f"{', '.join(fixed)} concerns Triton, and needs a restart: gateway stop, then gateway up"
        else:
            answer = api_plan(new, {**changed, **known["own"]})
    except (UserError, OSError) as exc:
        answer = "; ".join(map(str, exc.args))
    sys.stdout.write(json.dumps(answer))


def run_triton(
    settings: Settings,
    model_repository: Path,
    *,
    host: str,
    ports: tuple[int, int, int],
    shown: Mapping[str, Any],
    arguments: Sequence[str] = (),
) -> None:
    """Become the process that keeps a Triton running alone, on (gRPC, HTTP, metrics) ports, until a signal.

    Raises TritonRuntimeError or UpFailed.
    """
    began, display = time.monotonic(), Display(**shown)
    install_models(model_repository, display.say)
    gpus = find_gpus()
    triton, _ = _triton(
        settings, model_repository, display, gpus, host=host, ports=ports, arguments=arguments, alone=True
    )
    become_supervisor(Table(triton, settings.triton_start_timeout_seconds, shown, not gpus.usable, began))


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
) -> tuple[dict[str, Any], StartPlan]:
    """The arguments of an EmbeddedTriton for this machine, and the plan that it is sized by."""
    runtime = _prepare(settings, model_repository, display)
    if not gpus.usable:
        elastic.update(model_repository, display.say)
    plan = plan_start(settings, model_repository, display.say, gpus=gpus.usable, with_gateway=not alone)
    in_flight = plan.settings.workers * plan.settings.max_images_in_flight
    configs = sized_configs(model_repository, plan.sizes)
    devices = choose_devices(configs, display.say, images_in_flight=in_flight, gpus=gpus)

    grpc_port, http_port, metrics_port = ports
    triton = {
        "runtime": runtime,
        "model_repository": model_repository,
        "host": host,
        "grpc_port": grpc_port,
        "http_port": http_port,
        "metrics_port": metrics_port,
        "cache_bytes": plan.settings.triton_cache_bytes,
        "load_models": (ALL,) if alone else models_to_start(plan.settings, configs, model_repository),
        "extra_arguments": (*devices.arguments, *arguments),
        "environment": devices.environment,
        "sizes": plan.sizes,
    }
    return triton, plan


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
        # In a separate process: the memory of torch would count as used when Triton's is planned.
        words = ["model", "add", "default", f"--model-repository={model_repository}"]
        began = time.monotonic()
        with display.waiting("preparing the default model"):
            code = run_aloud([sys.executable, "-m", "gateway", *words], display.say)
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


if __name__ == "__main__":
    print_plan(sys.argv[1])
