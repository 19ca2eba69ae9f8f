"""The settings of the Open Inference Protocol."""

from typing import ClassVar

from pydantic import Field

from gateway.errors import Overloaded, RequestTooLarge
from gateway.settings import GIB, MIB, Limits, Section, Settings, variable


class ProtocolSettings(Section):
    """The Open Inference Protocol: over gRPC, and its sequences."""

    limits: ClassVar[Limits] = {
        "grpc_max_calls": ("calls", Overloaded),
        "grpc_max_message_bytes": ("bytes", RequestTooLarge),
        "max_sequences": ("sequences", Overloaded),
    }

    grpc_port: int = Field(0, ge=0, le=65_535)
    """Port of the Open Inference Protocol over gRPC; 0 for none. Needs the extra grpc."""
    grpc_max_calls: int = Field(256, ge=1, le=100_000)
    """gRPC calls of one process at once, with open streams; more are refused with RESOURCE_EXHAUSTED."""
    grpc_max_message_bytes: int = Field(24 * MIB, ge=MIB, le=GIB)
    """Bytes of one gRPC message, with all its images; a larger one is refused with RESOURCE_EXHAUSTED."""
    max_sequences: int = Field(256, ge=1, le=100_000)
    """Sequences under /v2 of one client (API key, or address without one) in one process. Another one ends the one that
    has been idle for longest, after 5 s without an image; if none is idle, it is refused with 503 `overloaded`."""

    def faults(self) -> list[str]:
        """Two servers cannot share a port."""
        if self.grpc_port == Settings.of(self).port:
            return [f"{variable('grpc_port')} and {variable('port')} are the same port: choose another one"]
        return []
