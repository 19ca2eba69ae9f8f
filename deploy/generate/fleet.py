"""The tables of docs/fleet.md: what so many images a second need, from the figures of gateway.capacity."""

import math
import re
from dataclasses import dataclass

from deploy.generate import DEPLOY
from gateway.capacity import (
    CALL_IMAGES,
    GATEWAY_MS,
    GPU_BATCH,
    GPU_INSTANCES,
    GPU_NETWORK_MS,
    NETWORK_BYTES,
    NETWORK_MS,
    PREPROCESS_MS,
    PREPROCESSOR_BYTES,
    TRITON_MS,
    WORKER_BYTES,
)

GUIDE = DEPLOY.parent / "docs" / "fleet.md"
IMAGES_PER_SECOND = 10_000
BUSY = 0.7
"""How busy processors and GPUs are to be: what is left carries gusts, and the rest when one of them is lost."""
IMAGE_BYTES = 105_000
CORES_OF_A_TRITON, CORES_BESIDE_A_GPU = 16, 12
"""Of a Triton without a GPU, and of one with a GPU, which needs what keeps that GPU busy."""
GIGABIT = 1e9 / 8


@dataclass(frozen=True)
class Fleet:
    """How much of what, for one kind of Triton."""

    gateways: int
    tritons: int
    cores_of_a_triton: int
    gpus: int
    preprocessors_of_a_triton: int
    images_in_flight_of_a_gateway: int
    memory_of_a_triton: float
    """In GB, without the GPU's."""


def fleet(images_per_second: int, *, gpus: bool) -> Fleet:
    """The arithmetic: processor time of an image × images a second ÷ how busy a core is to be."""
    cores_of_a_triton = CORES_BESIDE_A_GPU if gpus else CORES_OF_A_TRITON
    gateways = math.ceil(images_per_second * GATEWAY_MS / 1_000 / BUSY)
    triton_ms = TRITON_MS + PREPROCESS_MS + (0 if gpus else NETWORK_MS)
    cores = math.ceil(images_per_second * triton_ms / 1_000 / BUSY)
    by_cores = math.ceil(cores / cores_of_a_triton)
    by_gpus = math.ceil(images_per_second * GPU_NETWORK_MS / 1_000 / BUSY) if gpus else 0
    tritons = max(by_cores, by_gpus) + 1  # one to lose, or to roll out
    share_of_decoding = PREPROCESS_MS / triton_ms
    preprocessors = math.ceil(cores_of_a_triton * share_of_decoding) if gpus else cores_of_a_triton
    networks = GPU_INSTANCES if gpus else cores_of_a_triton
    in_hand = 2 * CALL_IMAGES * preprocessors + 2 * (GPU_BATCH if gpus else CALL_IMAGES) * networks
    limit = math.ceil(in_hand * tritons / gateways / CALL_IMAGES) * CALL_IMAGES
    memory = (preprocessors * PREPROCESSOR_BYTES + networks * NETWORK_BYTES) / 1e9
    return Fleet(
        gateways,
        tritons,
        cores_of_a_triton,
        tritons if gpus else 0,
        preprocessors,
        max(32, limit),
        memory,
    )


def sizes() -> str:
    """How many of what."""
    with_gpus, without = (fleet(IMAGES_PER_SECOND, gpus=gpus) for gpus in (True, False))
    triton_ms = {True: TRITON_MS + PREPROCESS_MS, False: TRITON_MS + PREPROCESS_MS + NETWORK_MS}
    n = IMAGES_PER_SECOND

    def cores(milliseconds: float) -> str:
        return f"{n * milliseconds / 1_000:.0f} cores busy"

    rows = [
        (
            "gateways, a core each",
            *(str(each.gateways) for each in (with_gpus, without)),
            f"{n:,} × {GATEWAY_MS:g} ms = {cores(GATEWAY_MS)}, ÷ {BUSY:g}",
        ),
        (
            "Tritons",
            *(f"{each.tritons}, {each.cores_of_a_triton} cores each" for each in (with_gpus, without)),
            f"{n:,} × {triton_ms[True]:g} ms = {cores(triton_ms[True])}; with the network on the CPU "
            f"{triton_ms[False]:g} ms = {cores(triton_ms[False])}; ÷ {BUSY:g} ÷ their cores, and one to lose",
        ),
        (
            "GPUs",
            *(str(each.gpus) for each in (with_gpus, without)),
            f"{n:,} × {GPU_NETWORK_MS:g} ms = {n * GPU_NETWORK_MS / 1_000:g} GPUs busy, ÷ {BUSY:g}, and one to lose",
        ),
        (
            "preprocessors of a Triton",
            *(str(each.preprocessors_of_a_triton) for each in (with_gpus, without)),
            "the share of its cores that decodes; without GPUs one a core",
        ),
        (
            "memory of a Triton",
            *(f"{each.memory_of_a_triton:.0f} GB" for each in (with_gpus, without)),
            f"{NETWORK_BYTES / 1e6:.0f} MB a network, {PREPROCESSOR_BYTES / 1e6:.0f} MB a preprocessor, "
            "and 1 GB of shared memory",
        ),
        (
            "`GATEWAY_MAX_IMAGES_IN_FLIGHT`",
            *(str(each.images_in_flight_of_a_gateway) for each in (with_gpus, without)),
            "what keeps every Triton busy and as much to follow, shared by the gateways",
        ),
        (
            "memory of all gateways",
            *(f"{each.gateways * WORKER_BYTES / 1e9:.0f} GB" for each in (with_gpus, without)),
            f"{WORKER_BYTES / 1e6:.0f} MB each; more with large uploads and decoding",
        ),
    ]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"| | with GPUs | without | because |\n|---|---|---|---|\n{lines}"


def network() -> str:
    """How much goes over which wire."""
    whole = IMAGES_PER_SECOND * IMAGE_BYTES
    with_gpus = fleet(IMAGES_PER_SECOND, gpus=True)
    rows = [
        ("clients → ingress → gateways", whole, 1),
        ("into one gateway, and on to Triton", whole / with_gpus.gateways, with_gpus.gateways),
        ("gateways → Tritons", whole, 1),
        ("into one Triton", whole / (with_gpus.tritons - 1), with_gpus.tritons - 1),
    ]
    lines = "\n".join(f"| {name} | {rate / 1e6:,.0f} MB/s | {rate / GIGABIT:.2g} Gbit/s |" for name, rate, _ in rows)
    return f"| | | |\n|---|---|---|\n{lines}"


FIGURES = (
    (
        "a gateway's time of an image",
        f"{GATEWAY_MS:g} ms of a core",
        "measured, [performance](performance.md): two cores, 105 kB, one file a request; bulk requests cost less",
    ),
    ("Triton's own", f"{TRITON_MS:g} ms", "measured there"),
    ("the preprocessor's", f"{PREPROCESS_MS:g} ms", "measured there; grows with the image's pixels"),
    ("EfficientNet-Lite0 on a core", f"{NETWORK_MS:g} ms", "measured there, fp32"),
    (
        "… on a GPU",
        f"{GPU_NETWORK_MS:g} ms",
        f"**assumed**: {1_000 / GPU_NETWORK_MS:,.0f} images a second and GPU; no GPU was measured",
    ),
    (
        "cores add up",
        "sixteen do sixteen times one's work",
        "**assumed**: measured on two, which share less memory and fewer caches; leave hyper-threads out of the count",
    ),
    (
        "gateways add up",
        "29 do 29 times one's work",
        "they share nothing; many gateways and Tritons were tried with simulated Tritons only ([scaling](scaling.md))",
    ),
    (
        "memory",
        "120 MB a gateway, 470 to 520 MB a network, 54 MB a preprocessor (what they share counted once)",
        "measured under load with the shipped model",
    ),
    ("70 % busy", "", "**chosen**: bursts fit, and so does the load of one Triton of six that is lost"),
    ("size of an image", "105 kB", "one photograph; yours decide the network"),
    (
        "bytes to Triton",
        "as many as came",
        "images of one call are padded to the longest; similar sizes travel together",
    ),
    ("the ingress", "two nodes of 25 Gbit/s", "**assumed**: a proxy that streams; none was measured"),
)
"""What the arithmetic rests on."""


def figures() -> str:
    """What the arithmetic rests on."""
    lines = "\n".join(f"| {' | '.join(row)} |" for row in FIGURES)
    return f"| assumption | value | rests on |\n|---|---|---|\n{lines}"


TABLES = {"sizes": sizes, "network": network, "figures": figures}


def with_tables(text: str) -> str:
    """The guide with its tables written again."""
    for name, make in TABLES.items():
        place = re.compile(rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        content = make()
        text = place.sub(lambda match, content=content: match[1] + content + match[2], text)
    return text
