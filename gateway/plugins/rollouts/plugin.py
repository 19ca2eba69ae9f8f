"""Shadow versions: they classify a share of the images as well."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.hooks import Plugin

if TYPE_CHECKING:
    from gateway.inference.request import Observer
    from gateway.inference.service import InferenceService


class Rollouts(Plugin):
    """Does nothing while no model has a shadow version."""

    metrics = "gateway.plugins.rollouts.metrics"

    def observers(self, service: "InferenceService") -> "Sequence[Observer]":
        """The observer that calls shadow versions."""
        from gateway.plugins.rollouts.shadow import Shadows

        return (Shadows(service),)
