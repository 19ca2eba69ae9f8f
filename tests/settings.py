"""The settings of a service with all plug-ins of this repository."""

import os
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from gateway.hooks import GROUP
from gateway.plugin_loading import is_ours, settings_class
from gateway.settings import variable

if TYPE_CHECKING:
    from gateway import settings
    from gateway.plugins.keys.settings import KeySettings
    from gateway.plugins.media.settings import MediaSettings
    from gateway.plugins.oip.settings import ProtocolSettings
    from gateway.plugins.tensors.settings import TensorSettings
    from gateway.plugins.urls.settings import UrlSettings
    from gateway_models.predictions.settings import PredictionLogSettings

    class Settings(
        ProtocolSettings,
        MediaSettings,
        PredictionLogSettings,
        KeySettings,
        TensorSettings,
        UrlSettings,
        settings.Settings,
    ):
        """The type for mypy."""
else:
    # Plug-ins of others that are installed would be in the tables, and in what the service answers.
    if others := [entry.name for entry in entry_points(group=GROUP) if not is_ours(entry.value)]:
        os.environ.setdefault(variable("plugins_off"), ",".join(others))
    Settings = settings_class()
