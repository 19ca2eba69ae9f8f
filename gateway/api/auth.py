"""Authentication by API key: requests without a valid key are refused before the body is read."""

from collections.abc import Sequence

from starlette.types import Scope

from gateway.api.request_context import RequestContext
from gateway.api.route_table import Access
from gateway.errors import Forbidden, Unauthorized, UserError
from gateway.hooks import Authenticator, Identity
from gateway.limits.bounds import Bound
from gateway.settings import variable

KEY_SUBPROTOCOL = "gateway-key."
"""Prefix of the key among the subprotocols of a WebSocket: web pages cannot send headers with a handshake."""

MISSING = "An API key is required: send it as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'."
UNKNOWN = "Unknown API key: it may have been removed, or copied incompletely."
NO_ADMIN = "This key cannot manage models; use an admin key."
UNKNOWN_KEY_CHALLENGE = 'Bearer error="invalid_token"'


class KeyCheck:
    """Requires a valid key for all routes but the open ones, and an admin key for admin routes.

    Without authenticators no route needs a key. The log event gets the name of the key as `key`.
    """

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self.authenticators = authenticators
        self.admin_only = all(each.admin_only for each in authenticators)
        """Whether only admin routes need a key."""
        self.has_admins = any(each.has_admins for each in authenticators)
        """Whether a key may load and unload models."""

    def check_metrics(self, access: Access) -> None:
        """Raise UserError if there is no key that could read `GET /metrics`, which needs one by the settings."""
        if (access is Access.KEY and self.admin_only) or (access is Access.ADMIN and not self.has_admins):
            raise UserError(
                f"{variable('metrics_access')}={access}, and there are no such keys: see docs/guides/keys.md"
            )

    def knows_key(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers has a valid key, or needs none unless its route is for admins."""
        return self.admin_only or isinstance(self._identify(_take_key({"type": "http", "headers": headers})), Identity)

    def upload_bound(self, headers: Sequence[tuple[bytes, bytes]]) -> Bound | None:
        """The share of the upload buffer of the key in these headers; None without a key that has one."""
        identity = self._identify(_take_key({"type": "http", "headers": headers}))
        return identity.caller.upload_bytes if isinstance(identity, Identity) else None

    def check(self, scope: Scope, context: RequestContext, access: Access) -> None:
        """Raise Unauthorized or Forbidden (RFC 6750, section 3.1) for a request that may not use its route."""
        key = _take_key(scope)
        if access is Access.OPEN:
            context.shows_details = isinstance(self._identify(key), Identity)
            return
        if access is Access.KEY and self.admin_only:
            return
        identity = self._identify(key)
        if not isinstance(identity, Identity):
            error = identity or Unauthorized(UNKNOWN if key else MISSING)
            error.challenge = UNKNOWN_KEY_CHALLENGE if key else error.challenge
            raise error
        if access is Access.ADMIN and not identity.admin:
            raise Forbidden(NO_ADMIN)
        context.log_fields["key"] = identity.name
        context.is_allowed = lambda: isinstance(self._identify(key), Identity)
        context.caller = identity.caller

    def _identify(self, key: bytes) -> Identity | Unauthorized | None:
        """The identity of a key, or the reason of the first authenticator that refuses it."""
        reason: Unauthorized | None = None
        for authenticator in self.authenticators if key else ():
            try:
                if (identity := authenticator.identify(key)) is not None:
                    return identity
            except Unauthorized as error:
                reason = reason or error
        return reason


def _take_key(scope: Scope) -> bytes:
    """Remove the key from the headers of a request and return it, or b""; a bearer token wins over X-API-Key.

    It is removed so that the rest of the application cannot log or echo it.
    """
    bearer = header = b""
    kept = []
    if scope["type"] == "websocket":
        # Subprotocols are all that a web page can add to the handshake of a WebSocket.
        offered = scope["subprotocols"]
        keys = [name.removeprefix(KEY_SUBPROTOCOL) for name in offered if name.startswith(KEY_SUBPROTOCOL)]
        header = keys[0].encode("latin-1", "replace") if keys else b""
        scope["subprotocols"] = [name for name in offered if not name.startswith(KEY_SUBPROTOCOL)]
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            header = header or value.strip()
        elif name == b"sec-websocket-protocol":
            pass
        elif name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                bearer = bearer or token.strip()
        else:
            kept.append((name, value))
    scope["headers"] = kept
    return bearer or header
