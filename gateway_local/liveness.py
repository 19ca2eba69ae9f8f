"""The check behind a liveness probe: whether only a restart of Triton helps."""

import asyncio
import time
from collections.abc import Callable

from gateway.deadline import Deadline
from gateway.errors import ContractBroken, GatewayError, Overloaded
from gateway.inference.backend import Call
from gateway.triton.client import TritonEndpoint
from gateway.triton.health.state import READY
from gateway.triton.wire import Codecs

PAUSE_SECONDS = 1.0


async def reason_to_restart(
    endpoint: TritonEndpoint,
    model: str,
    *,
    codecs: Codecs | None = None,
    patience_seconds: float,
    pause_seconds: float = PAUSE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Why a Triton has to be restarted; None if one inference through the model succeeds within `patience_seconds`.

    The patience must be longer than a reload and than the wait in Triton's queues: recovery comes first, and a busy
    Triton is alive. A model that is not loaded, or is being loaded, does not fail a liveness probe; nor does one whose
    configuration `codecs` refuse, which a restart does not change.
    """
    deadline = Deadline(clock() + patience_seconds)
    while True:
        reason = await _failure(endpoint, model, codecs or Codecs(), max(1.0, deadline.at - clock()))
        if reason is None or clock() >= deadline.at:
            return reason
        await asyncio.sleep(pause_seconds)


async def _failure(endpoint: TritonEndpoint, model: str, codecs: Codecs, seconds: float) -> str | None:
    try:
        states = {each.name: each.state for each in (await endpoint.index()).models}
        if states.get(model) != READY:
            return None
        codec = codecs.of(await endpoint.config(model))
        call = Call([codec.probe()], model, "", None, Deadline.after(seconds), "liveness")
        await endpoint.infer(call, class_count=1, codec=codec)
    except (Overloaded, ContractBroken):
        return None  # an overloaded Triton is alive
    except GatewayError as exc:
        return f"{endpoint.address}, model {model}: {exc.__cause__ or exc}"
    return None
