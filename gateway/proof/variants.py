"""The ways to serve a model that `gateway model tune` measures."""

from dataclasses import dataclass
from enum import StrEnum

from gateway.repository.entry import Format, Precision, Serving


class Step(StrEnum):
    """What `tune` varies, one after another."""

    FORMATS = "formats"
    INT8 = "int8"
    INSTANCES = "instances"
    BATCHES = "batches"


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to serve a model."""

    format: Format
    precision: Precision
    serving: Serving

    def described(self) -> str:
        """A line for tables."""
        preferred = ",".join(map(str, self.serving.preferred)) or "none"
        return (
            f"{self.format.value} {self.precision.value}, instances {self.serving.instances}, "
            f"preprocessors {self.serving.preprocessor_instances}, preferred {preferred}"
        )
