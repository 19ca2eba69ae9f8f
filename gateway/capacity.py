"""How a machine's cores and GPUs are best shared out: pure arithmetic, written out in docs/gpu.md.

Every image costs processor time in four places: the gateway (HTTP, multipart, gRPC), Triton itself, the preprocessor
(decoding and resizing) and, on a machine without a GPU, the network. A GPU takes over the network alone, so that on a
GPU machine the cores are what limits, and the shares of the cores decide.
"""

import math
from dataclasses import dataclass

GATEWAY_MS, TRITON_MS, PREPROCESS_MS = 2.0, 0.7, 2.2
"""Processor time of one image on one core, measured with a 600 × 400 JPEG of 105 kB (docs/performance.md)."""
NETWORK_MS = 18.2
"""The same for EfficientNet-Lite0 in fp32 on a core."""
GPU_NETWORK_MS = 0.3
"""Time of one image on a GPU, in a batch. Not measured: an assumption of some 3,300 images a second; give your own."""

CALL_IMAGES = 8
"""Images of one call: small ones keep every preprocessor busy, and the network's queue merges them again."""
GPU_BATCH, CPU_BATCH = 32, 8
"""Preferred batch of the network. A GPU wants many images at once; a core is fastest with few."""
GPU_INSTANCES = 2
"""Of the network on each GPU: one computes while the other's batch is copied."""
QUEUE_DELAY_US = 1_000
"""Time that a batch may wait on a GPU for a larger one, with a Triton of 26.08 or newer; a third of a batch's work."""
MAX_PREPROCESSORS = MAX_WORKERS = 64
MIN_IN_FLIGHT = 32
MIB = 2**20
NETWORK_BYTES, PREPROCESSOR_BYTES = 500 * MIB, 64 * MIB
"""Memory of a process with torch, and of one without, measured under load with the default model. What they share is
counted once."""
WORKER_BYTES = 150 * MIB
"""Memory of one gateway process without images."""
REGION_BYTES = 16 * MIB
"""Shared memory of one Python-backend process; it grows by as much with large batches."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings for one machine that runs both the gateway and Triton, and what they should reach."""

    cores: int
    gpus: int
    workers: int
    preprocessors: int
    networks: int
    """Instances on each GPU, or on the CPU."""
    preferred: tuple[int, ...]
    queue_delay_us: int
    call_images: int
    calls_of_a_request: int
    images_in_flight: int
    """Of one worker; waiting as many again."""
    ceilings: dict[str, float]
    """Images a second that each part can do by itself."""
    shared_memory_bytes: int
    memory_bytes: int

    @property
    def images_per_second(self) -> float:
        """What the slowest part allows."""
        return min(self.ceilings.values())

    @property
    def limited_by(self) -> str:
        """The slowest part."""
        return min(self.ceilings, key=lambda part: self.ceilings[part])

    def settings(self) -> dict[str, int]:
        """The gateway's settings by field."""
        return {
            "workers": self.workers,
            "max_images_in_flight": self.images_in_flight,
            "max_images_waiting": self.images_in_flight,
            "batch_max_images": self.call_images,
            "request_max_calls": self.calls_of_a_request,
        }


def plan(cores: int, gpus: int, *, gpu_network_ms: float = GPU_NETWORK_MS, network_ms: float = NETWORK_MS) -> Plan:
    """The plan for a machine; raises ValueError for less than one core or a negative number of GPUs."""
    if cores < 1 or gpus < 0 or gpu_network_ms <= 0 or network_ms <= 0:
        raise ValueError("a plan needs at least one core, no fewer than 0 GPUs, and times above 0")
    if gpus:
        # The cores are shared in the proportion of the work; Triton's own threads share with both.
        each = cores / (GATEWAY_MS + TRITON_MS + PREPROCESS_MS)
        workers = min(MAX_WORKERS, max(1, round(each * GATEWAY_MS)))
        preprocessors = min(MAX_PREPROCESSORS, max(1, round(each * PREPROCESS_MS)))
        networks, batch = GPU_INSTANCES, GPU_BATCH
        network_rate = gpus * 1_000 / gpu_network_ms
        all_cores_ms = GATEWAY_MS + TRITON_MS + PREPROCESS_MS
    else:
        # An instance of each a core: whichever has work takes the core. Measured with two of each on two cores.
        workers = max(1, round(cores * GATEWAY_MS / (GATEWAY_MS + TRITON_MS + PREPROCESS_MS + network_ms)))
        preprocessors = networks = min(MAX_PREPROCESSORS, cores)
        batch = CPU_BATCH
        network_rate = networks * 1_000 / network_ms
        all_cores_ms = GATEWAY_MS + TRITON_MS + PREPROCESS_MS + network_ms
    # In hand and ready to follow, at both steps: what is fewer leaves one of them idle.
    in_hand = 2 * CALL_IMAGES * preprocessors + 2 * batch * networks * max(1, gpus)
    in_flight = max(MIN_IN_FLIGHT, math.ceil(in_hand / workers / CALL_IMAGES) * CALL_IMAGES)
    stubs = preprocessors + networks * max(1, gpus)
    return Plan(
        cores=cores,
        gpus=gpus,
        workers=workers,
        preprocessors=preprocessors,
        networks=networks,
        preferred=(8, 16, 32) if gpus else (4, 8),
        queue_delay_us=QUEUE_DELAY_US if gpus else 0,
        call_images=CALL_IMAGES,
        # One request may use half of what a worker has in flight: a bulk request is fast, and others find room.
        calls_of_a_request=max(4, in_flight // CALL_IMAGES // 2),
        images_in_flight=in_flight,
        ceilings={
            "all cores together": cores * 1_000 / all_cores_ms,
            "gateway": workers * 1_000 / GATEWAY_MS,
            "preprocessors": preprocessors * 1_000 / PREPROCESS_MS,
            "network": network_rate,
        },
        shared_memory_bytes=4 * REGION_BYTES * stubs,
        memory_bytes=workers * WORKER_BYTES
        + preprocessors * PREPROCESSOR_BYTES
        + networks * max(1, gpus) * NETWORK_BYTES,
    )
