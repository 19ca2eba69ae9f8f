"""How many processes of each stage a machine should run, and with what limits: arithmetic, in docs/guides/sizing.md.

Every image costs processor time in four stages: the gateway (HTTP, multipart, gRPC), Triton itself, the preprocessor
(decoding and resizing) and, on a machine without a GPU, the network. The plan gives each stage as many processes as it
needs at the rate of all cores. GPUs reduce that rate only if the network's time on them was measured. Standard library
only: it also runs in NVIDIA's image, next to Triton.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Self

CALL_IMAGES = 8
"""Images of one call: small calls keep every preprocessor busy, and the network's queue merges them again."""
GPU_BATCH = 32
"""Largest preferred batch of a network on a GPU."""
CPU_PREFERRED, GPU_PREFERRED = (4, 8), (8, 16, GPU_BATCH)
"""Preferred batches. A GPU wants many images at once; a core is fastest with few."""
GPU_INSTANCES = 2
"""Instances of the network on each GPU: one computes while the batch of the other is copied."""
QUEUE_DELAY_US = 1_000
"""Time that a batch on a GPU may wait for more images: a third of a batch's compute time."""
SPARE_INSTANCES = 2
"""Fewest preprocessors and networks on as many cores: one alone would be held up by a large image or a reload."""
MAX_INSTANCES = MAX_WORKERS = 64
MIN_GRPC_THREADS, MAX_GRPC_THREADS = 2, 64
MIN_IN_FLIGHT = 32
IN_FLIGHT_PER_CORE = 2 * CALL_IMAGES
"""Images in flight of all workers for each busy core: a call that it works on, and one that waits."""
IN_FLIGHT_PER_GPU = 2 * GPU_BATCH * GPU_INSTANCES
"""The same for each busy GPU: a batch in work and one that waits, for each instance."""
SLOW_GPU_MS = 0.3
"""Time of a slow GPU for one image, where none was measured. It decides only how many GPUs count as busy."""
MIB = 2**20
WORKER_BYTES = 150 * MIB
"""Memory of one gateway process without images."""
DEFAULT_LOAD_THREADS, MIN_LOAD_THREADS = 4, 2
"""Triton's threads that load models, if no option says otherwise; and the fewest, since a load that hangs keeps one."""
DEFAULT_PINNED_POOL_BYTES = 256 * MIB
"""Triton's pool of pinned host memory, from which tensors are copied to a GPU, if no option says otherwise."""
PINNED_BYTES = MIB
"""Pinned memory for an image in flight; one of 224 x 224 pixels takes 0.6 MiB. Without it copies are slower."""
SHARED_BYTES = 64 * MIB
"""Shared memory of one Python-backend process under load."""


class NetworkRuntime(StrEnum):
    """The program or library that runs a model."""

    TORCH_CUDA = "PyTorch (CUDA build)"
    TORCH_CPU = "PyTorch (CPU build)"
    ONNX = "ONNX Runtime"
    OPENVINO = "OpenVINO"
    PYTHON = "Python"
    """A Python function with unknown imports."""
    PREPROCESSOR = "preprocessor"
    STATEFUL = "stateful model"


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory in bytes of one process of a runtime, without the weights of its model."""

    loaded_bytes: int
    """Private memory once it has loaded a small model."""
    peak_bytes: int
    """Private memory under load."""
    shared_bytes: int
    """Memory of the libraries, counted once for all processes of the runtime."""


PROCESS_MEMORY = {
    NetworkRuntime.TORCH_CUDA: ProcessMemory(290 * MIB, 500 * MIB, 330 * MIB),
    NetworkRuntime.TORCH_CPU: ProcessMemory(150 * MIB, 370 * MIB, 140 * MIB),
    NetworkRuntime.ONNX: ProcessMemory(30 * MIB, 170 * MIB, 30 * MIB),
    NetworkRuntime.OPENVINO: ProcessMemory(100 * MIB, 250 * MIB, 65 * MIB),
    NetworkRuntime.PYTHON: ProcessMemory(15 * MIB, 500 * MIB, 20 * MIB),
    NetworkRuntime.PREPROCESSOR: ProcessMemory(25 * MIB, 64 * MIB, 20 * MIB),
    NetworkRuntime.STATEFUL: ProcessMemory(14 * MIB, 24 * MIB, 10 * MIB),
}
"""Memory of a process whose model was not measured when it was added. Measured with the default model on two cores."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time in ms of a core for one image, by stage.

    The defaults are for a JPEG of 105 kB among 32 single uploads in flight, as `python -m bench.feed` prints them,
    and for the default network, EfficientNet-Lite0.
    """

    gateway_ms: float = 1.4
    triton_ms: float = 0.3
    preprocessor_ms: float = 1.8
    network_ms: float = 12.7
    gpu_network_ms: float | None = None
    """Time of a GPU for one image in a batch; None if it was not measured, and then the cores alone limit a plan."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse costs such as "preprocessor_ms=2.1,gpu_network_ms=0.08"; the others have their defaults.

        Raises ValueError for another name, or for a time that is not a number above 0.
        """
        names = [each.name for each in fields(cls)]
        times = {}
        for item in filter(None, map(str.strip, text.split(","))):
            name, _, value = item.partition("=")
            try:
                times[name] = float(value)
            except ValueError:
                times[name] = math.nan
            if name not in names or not 0 < times[name] < math.inf:
                known = ", ".join(names)
                raise ValueError(f"{item!r} is no NAME=MILLISECONDS with a time above 0 and one of the names {known}")
        return cls(**times)

    @property
    def text(self) -> str:
        """The inverse of `read`: the costs that are not the defaults; "" if all are."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return ",".join(f"{name}={value:g}" for name, value in found.items() if value != getattr(Costs(), name))


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts and limits for one machine, and the expected rate."""

    cores: float
    gpus: int
    costs: Costs
    images_per_second: float
    """The expected rate, for which there are enough processes of each stage."""
    limited_by: str
    workers: int
    preprocessors: int
    networks: int
    """Instances on each GPU, or on the CPU."""
    grpc_threads: int
    """Triton's threads that handle gRPC calls."""
    images_in_flight: int
    """Images in flight of one worker."""
    triton_alone: bool = False
    """Whether the cores are Triton's alone; else a gateway shares them."""
    all_cores: float = 0
    """Cores of the machine; more than `cores` where memory does not suffice for processes on all of them."""

    @property
    def load_threads(self) -> int:
        """Triton's threads that load models: a core is left to calls where there are more than two."""
        return min(DEFAULT_LOAD_THREADS, max(MIN_LOAD_THREADS, int(self.cores) - 1))

    @property
    def preferred(self) -> tuple[int, ...]:
        """Batch sizes that the network's queue forms."""
        return GPU_PREFERRED if self.gpus else CPU_PREFERRED

    @property
    def queue_delay_us(self) -> int:
        """Time that a batch of the network may wait for more images."""
        return QUEUE_DELAY_US if self.gpus else 0

    @property
    def models_bytes(self) -> int:
        """Memory of the models' processes under load, if one network with one version is served."""
        preprocessor, network = (
            PROCESS_MEMORY[each] for each in (NetworkRuntime.PREPROCESSOR, NetworkRuntime.TORCH_CUDA)
        )
        return self.preprocessors * preprocessor.peak_bytes + self.networks * max(1, self.gpus) * network.peak_bytes

    @property
    def all_images_in_flight(self) -> int:
        """Images of all workers that may be in Triton at a time."""
        return self.workers * self.images_in_flight

    @property
    def machine(self) -> str:
        """The cores and GPUs of the plan, in words."""
        gpus = _counted(self.gpus, "GPU") if self.gpus else "no GPU"
        alone = " for Triton alone" if self.triton_alone else ""
        if self.all_cores > self.cores:
            cores = f"{self.cores:g} of {_counted(self.all_cores, 'core')}"
            return f"{cores}, since memory allows no more, and {gpus}{alone}"
        return f"{_counted(self.cores, 'core')}, {gpus}{alone}"

    def settings(self) -> dict[str, int]:
        """The gateway's settings by field."""
        return {
            "workers": self.workers,
            "max_images_in_flight": self.images_in_flight,
        }

    def explained(self) -> list[str]:
        """The machine with its rate, the processes of each stage, and what was not measured."""
        workers = "" if self.triton_alone else f"{self.workers} of the gateway, "
        on_gpus = " on each GPU" if self.gpus else ""
        lines = [
            f"sized for {self.machine}: about {self.images_per_second:,.0f} images/s, limited by {self.limited_by}",
            f"processes: {workers}{self.preprocessors} of the preprocessor, {self.networks} of the network{on_gpus}",
        ]
        if self.gpus and self.costs.gpu_network_ms is None:
            lines.append("the network's time on a GPU was not measured: gateway doctor --run")
        return lines


def plan(cores: float, gpus: int, costs: Costs | None = None, *, triton_alone: bool = False) -> Plan:
    """The plan for a machine; raises ValueError for no core or a negative number of GPUs.

    With `triton_alone` no gateway shares the cores, and its stage takes none of their time.
    """
    costs = costs or Costs()
    if cores <= 0 or gpus < 0:
        raise ValueError("a plan needs more than 0 cores, and no fewer than 0 GPUs")
    # A GPU takes over only the network.
    stages = [
        costs.preprocessor_ms,
        *([] if triton_alone else [costs.gateway_ms]),
        *([] if gpus else [costs.network_ms]),
    ]
    core_ms = costs.triton_ms + sum(stages)
    rates = {
        "all cores together": cores * 1_000 / core_ms,
        f"{MAX_INSTANCES} processes of a stage": MAX_INSTANCES * 1_000 / max(stages),
    }
    if gpus and costs.gpu_network_ms is not None:
        rates["the GPUs"] = gpus * 1_000 / costs.gpu_network_ms
    limited_by, rate = min(rates.items(), key=lambda item: item[1])
    workers = _processes(rate, costs.gateway_ms, MAX_WORKERS)
    spare = min(SPARE_INSTANCES, int(cores))
    in_flight = IN_FLIGHT_PER_CORE * rate * core_ms / 1_000
    if gpus:
        in_flight += IN_FLIGHT_PER_GPU * _processes(rate, costs.gpu_network_ms or SLOW_GPU_MS, gpus)
    calls = math.ceil(round(in_flight / workers / CALL_IMAGES, 9))
    threads = 1 + _processes(rate, costs.triton_ms, MAX_GRPC_THREADS - 1)
    return Plan(
        cores=cores,
        gpus=gpus,
        costs=costs,
        images_per_second=rate,
        limited_by=limited_by,
        workers=workers,
        preprocessors=max(spare, _processes(rate, costs.preprocessor_ms, MAX_INSTANCES)),
        networks=GPU_INSTANCES if gpus else max(spare, _processes(rate, costs.network_ms, MAX_INSTANCES)),
        grpc_threads=max(MIN_GRPC_THREADS, threads),
        images_in_flight=max(MIN_IN_FLIGHT, calls * CALL_IMAGES),
        triton_alone=triton_alone,
    )


def fitting_plan(
    cores: float, gpus: int, costs: Costs | None, fits: Callable[[Plan], bool], *, triton_alone: bool = False
) -> Plan:
    """The plan for as many of the machine's cores as fit, so that the stages stay in proportion; at least one."""
    choices = [*range(1, math.ceil(cores)), cores]
    plans = [plan(usable, gpus, costs, triton_alone=triton_alone) for usable in choices]
    # The first choice that does not fit; a plan for more cores never needs less.
    too_many = bisect_left(plans, True, key=lambda each: not fits(each))  # noqa: FBT003
    return replace(plans[max(0, too_many - 1)], all_cores=cores)


def pinned_pool_bytes(images_in_flight: int) -> int:
    """The size of Triton's pool of pinned host memory on a machine with GPUs."""
    return max(DEFAULT_PINNED_POOL_BYTES, PINNED_BYTES * images_in_flight)


def _processes(rate: float, milliseconds: float, most: int) -> int:
    """How many processes, threads or GPUs are busy at a rate."""
    # Rounded first: 3.0000000000000004 processes are three.
    return min(most, max(1, math.ceil(round(rate * milliseconds / 1_000, 9))))


def _counted(count: float, what: str) -> str:
    return f"{count:g} {what}{'s' * (count != 1)}"
