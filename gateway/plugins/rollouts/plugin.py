"""Shadow versions: they classify a share of the images as well."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.hooks import Plugin

if TYPE_CHECKING:
    from gateway.inference.request import Observer
    from gateway.inference.tools import Tools


class Rollouts(Plugin):
    """Does nothing while no model has a shadow version."""

    metrics = "gateway.plugins.rollouts.metrics"

    def observers(self, tools: "Tools") -> "Sequence[Observer]":
        """The observer that calls shadow versions."""
        from gateway.plugins.rollouts.shadow import Shadows

        return (Shadows(tools),)
