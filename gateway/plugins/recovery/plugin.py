"""Recovery of Triton servers: reloads failing models, and loads missing ones."""

from typing import TYPE_CHECKING

from gateway.hooks import Plugin, RepairOf
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.plugins.recovery.recovery import ModelRecovery
    from gateway.triton.client import TritonEndpoint
    from gateway.triton.health.checker import Probes
    from gateway.triton.health.state import HealthState


class Recovery(Plugin):
    """Does nothing if GATEWAY_HEAL is false."""

    metrics = "gateway.plugins.recovery.metrics"

    def __init__(self, settings: Settings) -> None:
        self._heal = settings.heal

    def repair(self) -> RepairOf | None:
        """See Plugin.repair."""
        return repair if self._heal else None


def repair(endpoint: "TritonEndpoint", state: "HealthState", probes: "Probes") -> "ModelRecovery":
    """The recovery of one Triton."""
    from gateway.plugins.recovery.recovery import ModelRecovery
    from gateway.plugins.recovery.reloading import ModelReloader

    return ModelRecovery(state, probes, ModelReloader(endpoint))
