"""The settings of the Open Inference Protocol."""

from typing import ClassVar

from pydantic import Field

from gateway.errors import Overloaded
from gateway.settings import FixedLimit, FixedLimits, Section, Settings, variable

MAX_CALLS = 256
"""gRPC calls of one process at once, with open streams. More need more processes."""
MAX_SEQUENCES = 256
"""Sequences under /v2 of one client (API key, or address without one) in one process."""


class ProtocolSettings(Section):
    """The Open Inference Protocol: over gRPC."""

    fixed_limits: ClassVar[FixedLimits] = {
        "grpc_max_calls": FixedLimit(MAX_CALLS, "calls", Overloaded),
        "max_sequences": FixedLimit(MAX_SEQUENCES, "sequences", Overloaded),
    }

    grpc_port: int = Field(0, ge=0, le=65_535)
    """Port; 0 for none. Needs the extra grpc, and API keys unless `host` is loopback."""

    def faults(self) -> list[str]:
        """Two servers cannot share a port."""
        if self.grpc_port == Settings.of(self).port:
            return [f"{variable('grpc_port')} and {variable('port')} are the same port: choose another one"]
        return []
