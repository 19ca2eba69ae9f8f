"""Whether a Triton is beyond repair: what a liveness probe asks, so that what no reload mends is restarted."""

import asyncio
import time
from collections.abc import Callable

from gateway.deadline import Deadline
from gateway.errors import GatewayError, Overloaded
from gateway.inference.backend import Call
from gateway.inference.probe import probe
from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.health.expected import READY

PAUSE_SECONDS = 1.0


async def what_is_dead(
    endpoint: TritonEndpoint,
    model: str,
    *,
    patience_seconds: float,
    pause_seconds: float = PAUSE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Why a Triton has to be restarted, or None where one inference through a model succeeds within the patience.

    The patience is to be longer than a reload and than Triton's queues: healing comes first, and a Triton with much to
    do is not a dead one. A model that is not loaded, or is being loaded, is none of a liveness probe's business.
    """
    deadline = Deadline(clock() + patience_seconds)
    while True:
        reason = await _failure(endpoint, model, max(1.0, deadline.at - clock()))
        if reason is None or clock() >= deadline.at:
            return reason
        await asyncio.sleep(pause_seconds)


async def _failure(endpoint: TritonEndpoint, model: str, seconds: float) -> str | None:
    try:
        states = {each.name: each.state for each in (await endpoint.index()).models}
        if states.get(model) != READY:
            return None
        call = Call(probe(), model, "", None, Deadline.after(seconds), "liveness")
        await endpoint.infer(call, class_count=1)
    except Overloaded:
        return None  # it answers, if only that it has enough to do
    except GatewayError as exc:
        return f"{endpoint.address}, model {model}: {exc.__cause__ or exc}"
    return None
