"""The settings of a service with all plug-ins of this repository."""

from typing import TYPE_CHECKING

from gateway.plugin_loading import settings_class

if TYPE_CHECKING:
    from gateway import settings
    from gateway.plugins.keys.settings import KeySettings
    from gateway.plugins.media.settings import MediaSettings
    from gateway.plugins.oip.settings import ProtocolSettings
    from gateway.plugins.tensors.settings import TensorSettings
    from gateway.plugins.urls.settings import UrlSettings
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
