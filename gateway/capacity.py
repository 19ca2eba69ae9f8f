"""How to divide a machine's cores and GPUs among the processes: pure arithmetic, explained in docs/guides/sizing.md.

Every image costs processor time in four places: the gateway (HTTP, multipart, gRPC), Triton itself, the preprocessor
(decoding and resizing) and, on a machine without a GPU, the network. A GPU takes over only the
network: on a machine with a GPU the cores are the bottleneck, so the plan divides the cores.
"""

import math
from dataclasses import dataclass

GATEWAY_MS, TRITON_MS, PREPROCESS_MS = 2.0, 0.7, 2.2
"""Processor time in ms of a 600 × 400 JPEG of 105 kB on one core, measured: docs/explanation/performance.md."""
NETWORK_MS = 18.2
"""Processor time in ms of EfficientNet-Lite0 in fp32 for one image on one core."""
GPU_NETWORK_MS = 0.3
"""Time in ms of one image in a batch on a GPU. Not measured: it assumes about 3,300 images/s; pass your own value."""

CALL_IMAGES = 8
"""Images of one call: small calls keep every preprocessor busy, and the network's queue merges them again."""
GPU_BATCH, CPU_BATCH = 32, 8
"""Preferred batch of the network. A GPU wants many images at once; a core is fastest with few."""
GPU_INSTANCES = 2
"""Instances of the network on each GPU: one computes while the batch of the other is copied."""
QUEUE_DELAY_US = 1_000
"""Time that a batch on a GPU may wait for more images (Triton 26.08 or newer): a third of a batch's compute time."""
MAX_PREPROCESSORS = MAX_WORKERS = 64
MIN_IN_FLIGHT = 32
MIB = 2**20
NETWORK_BYTES, PREPROCESSOR_BYTES = 500 * MIB, 64 * MIB
"""Memory of a process with torch, and of one without, measured under load with the default model. Shared memory is
counted once."""
WORKER_BYTES = 150 * MIB
"""Memory of one gateway process without images."""
REGION_BYTES = 16 * MIB
"""Shared memory of one Python-backend process, and the step by which it grows for large batches."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings for one machine that runs both the gateway and Triton, and the expected throughput."""

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
    """Images in flight of one worker; the same number may wait."""
    ceilings: dict[str, float]
    """Images per second that each part can process by itself."""
    shared_memory_bytes: int
    memory_bytes: int

    @property
    def images_per_second(self) -> float:
        """The throughput of the slowest part."""
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
        # Cores are divided in proportion to the work; Triton's own threads share the cores of both.
        each = cores / (GATEWAY_MS + TRITON_MS + PREPROCESS_MS)
        workers = min(MAX_WORKERS, max(1, round(each * GATEWAY_MS)))
        preprocessors = min(MAX_PREPROCESSORS, max(1, round(each * PREPROCESS_MS)))
        networks, batch = GPU_INSTANCES, GPU_BATCH
        network_rate = gpus * 1_000 / gpu_network_ms
        all_cores_ms = GATEWAY_MS + TRITON_MS + PREPROCESS_MS
    else:
        # One preprocessor and one network per core; they alternate on it. Measured with two of each on two cores.
        workers = max(1, round(cores * GATEWAY_MS / (GATEWAY_MS + TRITON_MS + PREPROCESS_MS + network_ms)))
        preprocessors = networks = min(MAX_PREPROCESSORS, cores)
        batch = CPU_BATCH
        network_rate = networks * 1_000 / network_ms
        all_cores_ms = GATEWAY_MS + TRITON_MS + PREPROCESS_MS + network_ms
    # Two batches per instance, one in work and one queued, for both models: with fewer, an instance is idle.
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
        # One request may use half of a worker's images in flight: a bulk request is fast, and others are still served.
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
