"""Sizes of the gateway's memory buffers: their total, and defaults that fit a small machine."""

from gateway.capacity import WORKER_BYTES
from gateway.settings import MIB, Settings

HELD = ("max_bytes_in_flight", "max_bytes_waiting", "max_bytes_unread")
"""Settings that limit the buffers of each gateway process."""
LOG_WRITER_BYTES = 100 * MIB
"""Memory of the prediction log's writer without its rows: Python and PyArrow."""
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
    held: int = sum(getattr(settings, field) * count for field, count in _held(settings).items())
    return settings.workers * (_worker_bytes(settings) + held)


def fitted(settings: Settings, budget_bytes: int, *, with_triton: bool) -> dict[str, int]:
    """The lowered settings with which the gateway fits into `budget_bytes`; {} if the defaults fit.

    Settings that were set explicitly are not changed. `with_triton` includes Triton's response cache.
    """
    held = {**_held(settings), "decode_memory_bytes": 1}
    counts = {field: settings.workers * count for field, count in held.items()}
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
    floors = {
        **LEAST,
        "max_bytes_in_flight": max(LEAST["max_bytes_in_flight"], settings.batch_max_bytes),
        "max_bytes_waiting": max(LEAST["max_bytes_waiting"], settings.max_file_bytes, settings.stream_frame_bytes),
    }
    lowered = {field: max(floors[field], int(getattr(settings, field) * share) // MIB * MIB) for field in free}
    return {field: value for field, value in lowered.items() if value < getattr(settings, field)}


def _held(settings: Settings) -> dict[str, int]:
    """How often a process may hold each of HELD: gRPC messages that arrive are counted beside uploads."""
    return {**dict.fromkeys(HELD, 1), **({"max_bytes_waiting": 2} if settings.grpc_port else {})}


def _worker_bytes(settings: Settings) -> int:
    """Memory of one gateway process and, if predictions are logged, of their queue and their writer."""
    if settings.log_predictions is None:
        return WORKER_BYTES
    # The writer has the rows of a file, and the file that it makes of them.
    return (
        WORKER_BYTES + LOG_WRITER_BYTES + settings.log_predictions_queue_bytes + 2 * settings.log_predictions_file_bytes
    )
