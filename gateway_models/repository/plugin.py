"""The plug-in by which an admin of the service changes which versions of a model answer."""

from gateway.errors import InvalidParameter
from gateway.hooks import Plugin
from gateway.settings import Settings
from gateway.values.rollout import Rollout


class Repository(Plugin):
    """Writes into the model repository of the settings, if there is one."""

    def __init__(self, settings: Settings) -> None:
        self._repository = settings.model_repository

    def record_rollout(self, model_name: str, rollout: Rollout) -> Rollout | None:
        """See Plugin.record_rollout."""
        if self._repository is None:
            return None
        from gateway_models.repository.entry import EntryError
        from gateway_models.repository.manage import use

        try:
            return use(self._repository, model_name, rollout)
        except EntryError as exc:
            raise InvalidParameter(f"{exc}.") from exc
