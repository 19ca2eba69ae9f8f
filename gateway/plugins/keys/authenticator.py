"""The owner of a request's key, by two files of keys."""

from typing import TYPE_CHECKING

import structlog

from gateway.hooks import Authenticator, Identity
from gateway.limits.caller import ANYONE
from gateway.plugins.keys.key_file import KeyFile, Keys
from gateway.plugins.keys.quota import NO_QUOTA
from gateway.plugins.keys.settings import KeySettings
from gateway.plugins.keys.tenant import Tenant
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.plugins.keys.rates import Rates

log = structlog.get_logger("gateway")


class KeyFiles(Authenticator):
    """Two files: API keys, and admin keys, which are valid for every route and have no quotas.

    Without API keys only admin routes need a key; without admin keys no key is an admin key. `rates` count the images
    of API keys. Raises KeysError if a file cannot be read.
    """

    def __init__(self, settings: Settings, rates: "Rates | None") -> None:
        own = KeySettings.of(settings)
        self._keys = None if own.api_keys_file is None else KeyFile(own.api_keys_file)
        self._admin_keys = None if own.admin_keys_file is None else KeyFile(own.admin_keys_file, admin=True)
        self._settings = settings
        self._rates = rates
        self._seen: Keys | None = None
        self._tenants: dict[str, Tenant] = {}
        """The caller of each key of `_seen`."""

    @property
    def admin_only(self) -> bool:
        """See Authenticator."""
        return self._keys is None

    @property
    def has_admins(self) -> bool:
        """See Authenticator."""
        return self._admin_keys is not None

    def identify(self, key: bytes) -> Identity | None:
        """See Authenticator. A key of both files is an admin key.

        While no key of the file has a quota, they have no limits, and no metrics.
        """
        if self._admin_keys is not None and (name := self._admin_keys.keys.name_of(key)) is not None:
            return Identity(name, admin=True)
        if self._keys is None or (name := (keys := self._keys.keys).name_of(key)) is None:
            return None
        if not keys.quotas:
            return Identity(name, caller=ANYONE)
        if keys is not self._seen:
            self._update(keys)
        return Identity(name, caller=self._tenants[name])

    def _update(self, keys: Keys) -> None:
        """Make a tenant for each key that is new, or whose quota has changed."""
        assert self._rates is not None
        tenants = {}
        for name in keys.digests:
            quota, known = keys.quotas.get(name, NO_QUOTA), self._tenants.get(name)
            if known is None or known.quota != quota:
                known = Tenant(name, quota, self._settings, self._rates)
            tenants[name] = known
        alone = self._settings.workers > 1 and KeySettings.of(self._settings).rate_store_url is None
        if alone and any(tenant.has_rate for tenant in tenants.values()):
            log.warning("rates_not_shared", workers=self._settings.workers)
        self._seen, self._tenants = keys, tenants
