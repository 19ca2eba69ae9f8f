"""The settings of a service with all plug-ins of this repository."""

from typing import TYPE_CHECKING

from gateway.plugins import settings_class

if TYPE_CHECKING:
    from gateway import settings
    from gateway_plugins.keys.settings import KeySettings
    from gateway_plugins.media.settings import MediaSettings
    from gateway_plugins.oip.settings import ProtocolSettings
    from gateway_plugins.tensors.settings import TensorSettings
    from gateway_plugins.urls.settings import UrlSettings
    from gateway_predictions.settings import PredictionLogSettings

    class Settings(
        ProtocolSettings,
        MediaSettings,
        PredictionLogSettings,
        KeySettings,
        TensorSettings,
        UrlSettings,
        settings.Settings,
    ):
        """What mypy sees."""
else:
    Settings = settings_class()
