"""How many processes of each stage a machine should run, and with what limits: arithmetic, in docs/guides/sizing.md.

Every image costs processor time in four stages: the gateway (HTTP, multipart, gRPC), Triton itself, the preprocessor
(decoding and resizing) and, on a machine without a GPU, the network. The plan gives each stage as many processes as it
needs at the rate of the whole. Standard library only: it also runs in NVIDIA's image, beside Triton.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

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
MIN_IN_FLIGHT, MIN_WAITING = 32, 64
IN_FLIGHT_PER_CORE = 2 * CALL_IMAGES
"""Images in flight of all workers for each busy core: a call that it works on, and one that waits."""
IN_FLIGHT_PER_GPU = 2 * GPU_BATCH * GPU_INSTANCES
"""The same for each busy GPU: a batch in work and one that waits, for each instance."""
MIB = 2**20
NETWORK_BYTES, PREPROCESSOR_BYTES = 500 * MIB, 64 * MIB
"""Memory of a process with torch, and of one without, measured under load with the default model. Shared memory is
counted once."""
WORKER_BYTES = 150 * MIB
"""Memory of one gateway process without images."""
REGION_BYTES = 16 * MIB
"""Shared memory of one Python-backend process, and the step by which it grows for large batches."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time in ms of a core for one image, by stage.

    The defaults are those of a JPEG of 105 kB among 32 single uploads in flight, as `python -m bench.feed` prints them,
    and of the default network, EfficientNet-Lite0.
    """

    gateway_ms: float = 1.4
    triton_ms: float = 0.3
    preprocessor_ms: float = 1.8
    network_ms: float = 12.7
    gpu_network_ms: float = 0.3
    """Time of a GPU for one image in a batch. Not measured: it assumes about 3,300 images/s."""

    def __post_init__(self) -> None:
        if min(self.gateway_ms, self.triton_ms, self.preprocessor_ms, self.network_ms, self.gpu_network_ms) <= 0:
            raise ValueError("a plan needs times above 0")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a plan, and what it can do by itself."""

    name: str
    count: int
    where: str
    """Where each instance runs, and how long it takes for an image."""
    images_per_second: float

    def __str__(self) -> str:
        return f"{self.name}: {self.count} {self.where}, up to {self.images_per_second:,.0f} images/s"


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts and limits for one machine that runs both the gateway and Triton, and the expected throughput."""

    cores: float
    gpus: int
    costs: Costs
    workers: int
    preprocessors: int
    networks: int
    """Instances on each GPU, or on the CPU."""
    grpc_threads: int
    """Triton's threads that handle gRPC calls."""
    images_in_flight: int
    """Images in flight of one worker."""
    all_cores: float = 0
    """Cores of the machine; more than `cores` where memory does not suffice for processes on all of them."""

    @property
    def machine_images_per_second(self) -> float:
        """What all cores together can do, or all GPUs where that is less."""
        return machine_rate(self.cores, self.gpus, self.costs)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages whose processes were counted."""
        costs = self.costs
        if self.gpus:
            gpus = f"on {_counted(self.gpus, 'GPU')}, {costs.gpu_network_ms:g} ms of a GPU for an image"
            network = Stage("network", self.networks * self.gpus, gpus, self.gpus * 1_000 / costs.gpu_network_ms)
        else:
            network = _stage("network", self.networks, costs.network_ms)
        return (
            _stage("gateway", self.workers, costs.gateway_ms),
            _stage("preprocessor", self.preprocessors, costs.preprocessor_ms),
            network,
        )

    @property
    def ceilings(self) -> dict[str, float]:
        """Images per second that each stage can process by itself, and all cores together."""
        total = _milliseconds(self.gpus, self.costs)
        return {
            "all cores together": self.cores * 1_000 / total,
            **{stage.name: stage.images_per_second for stage in self.stages},
        }

    @property
    def images_per_second(self) -> float:
        """The throughput of the slowest part."""
        return min(self.ceilings.values())

    @property
    def limited_by(self) -> str:
        """The slowest part."""
        return min(self.ceilings, key=lambda part: self.ceilings[part])

    @property
    def preferred(self) -> tuple[int, ...]:
        """Batch sizes that the network's queue forms."""
        return GPU_PREFERRED if self.gpus else CPU_PREFERRED

    @property
    def queue_delay_us(self) -> int:
        """Time that a batch of the network may wait for more images."""
        return QUEUE_DELAY_US if self.gpus else 0

    @property
    def shared_memory_bytes(self) -> int:
        """Shared memory of the Python-backend processes under load."""
        return 4 * REGION_BYTES * (self.preprocessors + self.networks * max(1, self.gpus))

    @property
    def models_bytes(self) -> int:
        """Memory of the models' processes under load, if one network with one version is served."""
        return self.preprocessors * PREPROCESSOR_BYTES + self.networks * max(1, self.gpus) * NETWORK_BYTES

    @property
    def memory_bytes(self) -> int:
        """Memory of all processes without images."""
        return self.workers * WORKER_BYTES + self.models_bytes

    @property
    def machine(self) -> str:
        """The cores and GPUs of the plan, in words."""
        gpus = _counted(self.gpus, "GPU") if self.gpus else "no GPU"
        if self.all_cores > self.cores:
            return f"{self.cores:g} of {_counted(self.all_cores, 'core')}, since memory allows no more, and {gpus}"
        return f"{_counted(self.cores, 'core')}, {gpus}"

    def settings(self) -> dict[str, int]:
        """The gateway's settings by field."""
        return {
            "workers": self.workers,
            "max_images_in_flight": self.images_in_flight,
            "max_images_waiting": max(MIN_WAITING, self.images_in_flight),
            "batch_max_images": CALL_IMAGES,
            # One request may use half of a worker's images in flight: a bulk request is fast, and others are served.
            "request_max_calls": max(4, self.images_in_flight // CALL_IMAGES // 2),
        }

    def explained(self) -> list[str]:
        """The choice and its reasons: a line for the machine, and one for each stage."""
        return [
            f"sized for {self.machine}: about {self.images_per_second:,.0f} images/s, limited by {self.limited_by}",
            *map(str, self.stages),
        ]


def plan(cores: float, gpus: int, costs: Costs | None = None) -> Plan:
    """The plan for a machine; raises ValueError for no core or a negative number of GPUs."""
    costs = costs or Costs()
    if cores <= 0 or gpus < 0:
        raise ValueError("a plan needs more than 0 cores, and no fewer than 0 GPUs")
    rate = machine_rate(cores, gpus, costs)
    workers = _processes(rate, costs.gateway_ms, MAX_WORKERS)
    spare = min(SPARE_INSTANCES, int(cores))
    preprocessors = max(spare, _processes(rate, costs.preprocessor_ms, MAX_INSTANCES))
    networks = GPU_INSTANCES if gpus else max(spare, _processes(rate, costs.network_ms, MAX_INSTANCES))
    in_flight = IN_FLIGHT_PER_CORE * rate * _milliseconds(gpus, costs) / 1_000
    if gpus:
        in_flight += IN_FLIGHT_PER_GPU * _processes(rate, costs.gpu_network_ms, gpus)
    calls = math.ceil(round(in_flight / workers / CALL_IMAGES, 9))
    threads = 1 + _processes(rate, costs.triton_ms, MAX_GRPC_THREADS - 1)
    return Plan(
        cores=cores,
        gpus=gpus,
        costs=costs,
        workers=workers,
        preprocessors=preprocessors,
        networks=networks,
        grpc_threads=max(MIN_GRPC_THREADS, threads),
        images_in_flight=max(MIN_IN_FLIGHT, calls * CALL_IMAGES),
    )


def fitting_plan(cores: float, gpus: int, costs: Costs | None, fits: Callable[[Plan], bool]) -> Plan:
    """The plan for as many of the machine's cores as fit, so that the stages stay in proportion; at least one."""
    choices = [*range(1, math.ceil(cores)), cores]
    # The first choice that does not fit; a plan for more cores never needs less.
    too_many = bisect_left(choices, True, key=lambda usable: not fits(plan(usable, gpus, costs)))  # noqa: FBT003
    return replace(plan(choices[max(0, too_many - 1)], gpus, costs), all_cores=cores)


def machine_rate(cores: float, gpus: int, costs: Costs) -> float:
    """Images per second of all cores together, or of all GPUs where that is less."""
    by_cores = cores * 1_000 / _milliseconds(gpus, costs)
    return min(by_cores, gpus * 1_000 / costs.gpu_network_ms) if gpus else by_cores


def _milliseconds(gpus: int, costs: Costs) -> float:
    """Processor time of an image in all stages; a GPU takes over only the network."""
    return costs.gateway_ms + costs.triton_ms + costs.preprocessor_ms + (0 if gpus else costs.network_ms)


def _processes(rate: float, milliseconds: float, most: int) -> int:
    """How many processes, threads or GPUs are busy at a rate."""
    # Rounded first: 3.0000000000000004 processes are three.
    return min(most, max(1, math.ceil(round(rate * milliseconds / 1_000, 9))))


def _stage(name: str, count: int, milliseconds: float) -> Stage:
    plural = {"gateway": "processes"}.get(name, "instances")
    unit = plural if count > 1 else {"processes": "process"}.get(plural, "instance")
    return Stage(name, count, f"{unit}, {milliseconds:g} ms of a core for an image", count * 1_000 / milliseconds)


def _counted(count: float, what: str) -> str:
    return f"{count:g} {what}{'s' * (count != 1)}"
