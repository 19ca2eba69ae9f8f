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

    Without `keys` only admin routes need a key; without `admin_keys` no key is an admin key. `tenants` are those of
    `keys`.
    """

    def __init__(self, keys: KeyFile | None, admin_keys: KeyFile | None, tenants: Tenants | None) -> None:
        self._keys = keys
        self._admin_keys = admin_keys
        self._tenants = tenants

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


def open_key_files(settings: Settings, rates: "Rates | None") -> KeyFiles | None:
    """The files that the settings name, None without any; `rates` count the images of API keys.

    Raises KeysError if one cannot be read, or if the settings require keys of a file that they do not name.
    """
    own = KeySettings.of(settings)
    if (file := _FILES.get(settings.metrics_access)) is not None and getattr(own, file) is None:
        needed = f"{variable('metrics_access')}={settings.metrics_access}"
        raise KeysError(f"{needed}, and there are no such keys: set {variable(file)}")
    keys = None if own.api_keys_file is None else KeyFile(own.api_keys_file)
    admin_keys = None if own.admin_keys_file is None else KeyFile(own.admin_keys_file, admin=True)
    tenants = None if rates is None else Tenants(settings, rates)
    return KeyFiles(keys, admin_keys, tenants) if keys or admin_keys else None
