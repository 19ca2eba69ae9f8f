"""Sizes of the gateway's memory buffers: their total, and defaults that fit a small machine."""

from gateway.machine.capacity import WORKER_BYTES
from gateway.settings import MIB, Settings

HELD = ("max_bytes_in_flight", "max_bytes_waiting", "max_bytes_unread")
"""Settings that limit the buffers of each gateway process."""
LEAST = {
    "max_bytes_in_flight": 16 * MIB,
    "max_bytes_waiting": 32 * MIB,
    "max_bytes_unread": 16 * MIB,
    # An image of 50 megapixels takes 150 MiB, one of 12 megapixels 36 MiB; a decoder's libraries reserve address space.
    "decode_memory_bytes": 192 * MIB,
    "triton_cache_bytes": 16 * MIB,
}
"""Settings whose defaults are lowered if memory is limited, with their minimum."""


def needed(settings: Settings) -> int:
    """Bytes that the gateway's processes use while all their buffers are full."""
    held: int = sum(getattr(settings, field) for field in HELD)
    return settings.workers * (_worker_bytes(settings) + held)


def fitted(settings: Settings, budget_bytes: int, *, with_triton: bool) -> dict[str, int]:
    """The lowered settings with which the gateway fits into `budget_bytes`; {} if the defaults fit.

    Settings that were set explicitly are not changed. `with_triton` includes Triton's response cache.
    """
    counts = dict.fromkeys((*HELD, "decode_memory_bytes"), settings.workers)
    if with_triton:
        counts["triton_cache_bytes"] = 1
    total = {field: count * getattr(settings, field) for field, count in counts.items()}
    free = [field for field in total if field not in settings.model_fields_set]
    left = (
        budget_bytes
        - settings.workers * _worker_bytes(settings)
        - sum(total[field] for field in total if field not in free)
    )
    wanted = sum(total[field] for field in free)
    if wanted <= left:
        return {}
    share = max(0.0, left / wanted)
    floors = {**LEAST, "max_bytes_waiting": max(LEAST["max_bytes_waiting"], settings.max_file_bytes)}
    lowered = {field: max(floors[field], int(getattr(settings, field) * share) // MIB * MIB) for field in free}
    return {field: value for field, value in lowered.items() if value < getattr(settings, field)}


def _worker_bytes(settings: Settings) -> int:
    """Memory of one gateway process without its buffers."""
    of_sections: int = sum(settings.each("process_bytes"))
    return WORKER_BYTES + of_sections
