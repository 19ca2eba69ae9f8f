"""The ways to explain an image, without what they need: the command line lists them."""

from enum import StrEnum


class ExplainMethod(StrEnum):
    """How an image is explained."""

    RISE = "rise"
    OCCLUSION = "occlusion"
    GRAD_CAM = "grad-cam"
    INTEGRATED_GRADIENTS = "integrated-gradients"

    @property
    def by_gradients(self) -> bool:
        """Whether it needs the original network instead of a service."""
        return self in {ExplainMethod.GRAD_CAM, ExplainMethod.INTEGRATED_GRADIENTS}
