"""The ways to serve a model that `gateway model tune` measures."""

from dataclasses import dataclass
from enum import StrEnum

from gateway.repository.entry import Decode, Format, Precision, Serving
from gateway.repository.pillow_order import PILLOW


class TuneStep(StrEnum):
    """What `tune` varies, one after another."""

    FORMATS = "formats"
    INT8 = "int8"
    INSTANCES = "instances"
    BATCHES = "batches"
    DECODE = "decode"
    RESIZE = "resize"


USUAL = (TuneStep.FORMATS, TuneStep.INSTANCES, TuneStep.BATCHES)
"""Those that change no pixel; the others are for who asks for them."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to serve a model."""

    format: Format
    precision: Precision
    serving: Serving
    resize_library: str = PILLOW

    def described(self) -> str:
        """A line for tables."""
        preferred = ",".join(map(str, self.serving.preferred)) or "none"
        return (
            f"{self.format.value} {self.precision.value}, instances {self.serving.instances}, "
            f"preprocessors {self.serving.preprocessor_instances}, preferred {preferred}"
            f"{', decoded fast' if self.serving.decode is Decode.FAST else ''}"
            f"{'' if self.resize_library == PILLOW else f', resized by {self.resize_library}'}"
        )
