"""Roll-outs: splits choose the version that answers, shadows classify a share of the images as well."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.findings import Finding
from gateway.hooks import Plugin
from gateway.settings import Settings
from gateway.values.setting_values import Shares
from gateway_plugins.rollouts.settings import RolloutSettings
from gateway_plugins.rollouts.split import version_of

if TYPE_CHECKING:
    from gateway.inference.observer import Observer


CLIENT_HEADER = "X-Client-ID"
"""The header whose value ties a client to one version of a split; without it the version is random."""


class Rollouts(Plugin):
    """Does nothing unless a model has a split or a shadow."""

    settings = RolloutSettings
    metrics = "gateway_plugins.rollouts.metrics"

    def __init__(self, settings: Settings) -> None:
        self._settings = RolloutSettings.of(settings)
        self.idle_hooks = () if self._settings.model_split else ("version",)

    @classmethod
    def check_models(cls, settings: Settings, has_version: Callable[[str, str], bool]) -> Sequence[Finding]:
        """Whether the versions of splits and shadows exist."""
        from gateway_plugins.rollouts.doctor import shares

        return list(shares(settings, has_version))

    def cors_headers(self) -> Sequence[str]:
        """The header that ties a client to a version."""
        return (CLIENT_HEADER,)

    def versions(self) -> Sequence[Shares]:
        """The versions that get requests, or images."""
        return self._settings.model_split, self._settings.model_shadow

    def version(self, model_name: str, headers: Mapping[str, str], client: str) -> str | None:
        """The version that the split of a model selects; the same one for the same client."""
        split = self._settings.model_split
        if model_name not in split:
            return None
        client = headers.get(CLIENT_HEADER, "") or client
        return version_of(split, model_name, None, client)[0]

    def observer(self) -> "Observer | None":
        """What calls shadow versions."""
        if not self._settings.model_shadow:
            return None
        from gateway_plugins.rollouts.shadow import Shadows

        return Shadows(self._settings.model_shadow)
