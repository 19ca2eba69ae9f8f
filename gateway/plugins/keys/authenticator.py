"""Whose key a request has, by two files of keys."""

from typing import TYPE_CHECKING

from gateway.hooks import Authenticator, Identity
from gateway.plugins.keys.key_file import KeyFile, KeysError
from gateway.plugins.keys.settings import KeySettings
from gateway.plugins.keys.tenant import Tenants
from gateway.settings import MetricsAccess, Settings, variable

if TYPE_CHECKING:
    from gateway.plugins.keys.rates import Rates

_FILES = {MetricsAccess.KEY: "api_keys_file", MetricsAccess.ADMIN: "admin_keys_file"}
"""The file of the keys that may read GET /metrics."""


class KeyFiles(Authenticator):
    """Two files: API keys, and admin keys, which are valid for every route and have no quotas.

    Without API keys only admin routes need a key; without admin keys no key is an admin key. `rates` count the images
    of API keys. Raises KeysError if a file cannot be read, or if the settings require keys of a file that they do not
    name.
    """

    def __init__(self, settings: Settings, rates: "Rates | None") -> None:
        own = KeySettings.of(settings)
        if (file := _FILES.get(settings.metrics_access)) is not None and getattr(own, file) is None:
            needed = f"{variable('metrics_access')}={settings.metrics_access}"
            raise KeysError(f"{needed}, and there are no such keys: set {variable(file)}")
        self._keys = None if own.api_keys_file is None else KeyFile(own.api_keys_file)
        self._admin_keys = None if own.admin_keys_file is None else KeyFile(own.admin_keys_file, admin=True)
        self._tenants = None if rates is None else Tenants(settings, rates)

    @property
    def admin_only(self) -> bool:
        """See Authenticator."""
        return self._keys is None

    @property
    def has_admins(self) -> bool:
        """See Authenticator."""
        return self._admin_keys is not None

    def identify(self, key: bytes) -> Identity | None:
        """See Authenticator. A key of both files is an admin key."""
        if self._admin_keys is not None and (name := self._admin_keys.keys.name_of(key)) is not None:
            return Identity(name, admin=True)
        if self._keys is None or self._tenants is None or (name := (keys := self._keys.keys).name_of(key)) is None:
            return None
        return Identity(name, caller=self._tenants.of(keys, name))
