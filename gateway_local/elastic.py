"""How many threads run the network of a lone image: timed on this machine, and recorded next to the network.

A network that gains keeps a second session, with which Triton's backend runs a batch of one while nothing else runs
(gateway_local/backends/onnxruntime/elastic.py).
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from gateway.machine.cores import usable_cores
from gateway.triton.configs import ModelConfig, instances_on_gpus, parameters, read_model_configs
from gateway.triton.footprint import ONNX, TORCH
from gateway.values.files import whole_file
from gateway_local import elastic_timing
from gateway_local.cpu_features import machine
from gateway_local.cpu_network import NETWORK, CpuRuntime, backend_module, choice
from gateway_local.json_child import ChildFailed, ask
from gateway_local.paths import DEFAULT_BACKENDS

_backend = backend_module("onnxruntime", "elastic")
RECORD: str = _backend.RECORD
LEAST_GAIN = 1.3
"""The gain for which twice the threads are kept: they take more processor time in total."""
MOST_THREADS = 4
TIMEOUT_SECONDS = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Threads:
    """A network's choice, and the seconds of a lone image by number of threads."""

    chosen: int
    seconds: Mapping[int, float]

    @property
    def described(self) -> str:
        """The choice as a clause; "" for one thread."""
        if self.chosen == 1:
            return ""
        gain = self.seconds[1] / self.seconds[self.chosen]
        return f"a lone image on {self.chosen} threads while nothing else runs, {gain:.1f} × as fast"


def candidates(cores: float) -> list[int]:
    """The numbers of threads to time: powers of two up to MOST_THREADS and the cores that this container may use."""
    return [1, *(threads for threads in (2, 4) if threads <= min(cores, MOST_THREADS))]


def choose(seconds: Mapping[int, float]) -> Threads:
    """The number of threads to keep: more of them where they gain LEAST_GAIN over those kept so far."""
    kept = 1
    for threads in sorted(seconds):
        if seconds[kept] / seconds[threads] > LEAST_GAIN:
            kept = threads
    return Threads(kept, seconds)


def recorded(model: Path) -> Threads | None:
    """The choice for a network on this machine; None if there is none, or only for another machine."""
    found = _backend.record(model)
    try:
        seconds = {int(threads): float(value) for threads, value in found["seconds"].items()}
        chosen = int(found["threads"])
        return Threads(chosen, seconds) if found["machine"] == machine() and chosen in seconds else None
    except (LookupError, ValueError, TypeError, AttributeError):
        return None


def write(found: Threads, model: Path) -> None:
    """Write the record next to a network; raises OSError."""
    document = {"threads": found.chosen, "machine": machine(), "seconds": found.seconds}
    with whole_file(model.with_name(RECORD), mode=0o644) as draft:
        draft.write_text(json.dumps(document, indent=2) + "\n")


def networks(repository: Path) -> Iterator[tuple[str, Path, ModelConfig]]:
    """The networks that may gain: name and version, file, configuration.

    Without networks on a GPU, and without networks whose configuration has several threads for every batch.
    """
    for name, config in read_model_configs(repository).items():
        kind = config.backend or config.platform
        count = {key.lower(): value for key, value in parameters(config).items()}.get("intra_op_thread_count", "1")
        if kind not in TORCH | ONNX or count != "1" or instances_on_gpus(config, 0):
            continue
        default = "model.pt" if kind in TORCH else "model.onnx"
        for folder in sorted(repository.glob(f"{name}/[0-9]*")):
            if (file := folder / (config.default_model_filename or default)).is_file():
                yield f"{name} version {folder.name}", file, config


def update(repository: Path, say: Say = lambda _: None) -> None:
    """Choose for each network that has no choice for this machine; one that cannot be timed keeps one thread.

    Networks in folders that cannot be written to are left out.
    """
    threads = candidates(usable_cores())
    if len(threads) == 1:
        return
    for name, model, config in networks(repository):
        if recorded(model) is not None or not os.access(model.parent, os.W_OK):
            continue
        if (given := _given(model, config)) is None:
            continue
        try:
            if not (seconds := _time({**given, "threads": threads})):
                say(f"{name} runs on one thread: the machine is too busy to time others, which the next start does")
                continue
            found = choose(seconds)
            write(found, model)
        except (OSError, ChildFailed) as exc:
            say(f"{name} runs on one thread, since others could not be timed: {exc}")
            continue
        if found.described:
            say(f"{name}: {found.described}")


def _given(model: Path, config: ModelConfig) -> dict[str, Any] | None:
    """The input of elastic_timing.py; None for a network of unknown size, or that neither library runs."""
    document = MessageToDict(config, preserving_proto_field_name=True)
    inputs = [[each["data_type"], list(map(int, each["dims"]))] for each in document["input"]]
    if any(-1 in dims or kind not in elastic_timing.TYPES for kind, dims in inputs):
        return None
    sessions, options = "on_onnxruntime", {}
    if model.suffix == ".pt":
        if choice(model)[0] is not CpuRuntime.ONNXRUNTIME:
            return None
        model = model.with_name(NETWORK)
    else:
        accelerators = config.optimization.execution_accelerators.cpu_execution_accelerator
        if any(each.name == "openvino" for each in accelerators):
            sessions, options = "on_openvino", dict(accelerators[0].parameters)
    return {
        "sessions": str(DEFAULT_BACKENDS / "onnxruntime" / f"{sessions}.py"),
        "model": str(model),
        "config": document,
        "parameters": {**parameters(config), **options},
        "inputs": inputs,
    }


def _time(given: dict[str, Any]) -> dict[int, float]:
    """The seconds by number of threads; raises ChildFailed."""
    answer = ask(elastic_timing.__file__, given, TIMEOUT_SECONDS)
    return {int(threads): float(seconds) for threads, seconds in answer.items()}
