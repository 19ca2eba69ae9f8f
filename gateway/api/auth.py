"""API keys at the door: who has none is turned away before a byte of the body is read."""

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.problems import note, problem, speaks_v2
from gateway.api.request_context import request_context_of
from gateway.api.schemas import Problem
from gateway.errors import Forbidden, Unauthorized
from gateway.keys import KeyFile
from gateway.oip.documents import V2Error

OPEN_PATHS = frozenset({"/", "/metrics", "/docs", "/openapi.json"})
OPEN_FOLDERS = ("/health/", "/v2/health/", "/docs/", "/assets/")
"""Probes, Prometheus, and the pages on which a key can be entered; every other path wants a key, also one without a
route."""

ADMIN_FOLDER = "/models/"
KEY_SUBPROTOCOL = "gateway-key."
"""Before the key in the subprotocols of a WebSocket, where a web page opens one: it cannot send headers."""

MISSING = "An API key is required: send it as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'."
UNKNOWN = "Unknown API key: it may have been removed, or copied incompletely."
NO_ADMIN = "This key cannot manage models; use an admin key."
SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


class RequireKey:
    """Lets requests with a known key pass, and everybody to the open paths; to the admin's paths an admin's key alone.

    Without a file of `keys` only the admin's paths want one; without `admin_keys` nobody has an admin's. An admin's key
    opens every path. It stands inside RequestContext, whose event gets the key's name as `key`.
    """

    def __init__(self, app: ASGIApp, keys: KeyFile | None, admin_keys: KeyFile | None = None) -> None:
        self._app = app
        self._keys = keys
        self._admin_keys = admin_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or answer 401 (RFC 6750, section 3) or 403 without having read the body."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        key = _take_key(scope)
        if is_open(scope["path"]):
            known = _name(self._admin_keys, key) or _name(self._keys, key)
            request_context_of(scope).shows_details = known is not None
            await self._app(scope, receive, send)
            return
        wants_admin = is_admins(scope["path"])
        if not wants_admin and self._keys is None:
            await self._app(scope, receive, send)
            return
        event = request_context_of(scope).event
        admin = _name(self._admin_keys, key)
        name = admin or _name(self._keys, key)
        if name is None or (wants_admin and admin is None):
            error = Forbidden(NO_ADMIN) if name else Unauthorized(UNKNOWN if key else MISSING)
            note(event, error)
            response = problem(error, scope)
            if name is None:
                response.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"' if key else "Bearer"
            await response(scope, receive, send)
            return
        event["key"] = name
        request_context_of(scope).is_allowed = lambda: bool(_name(self._admin_keys, key) or _name(self._keys, key))
        await self._app(scope, receive, send)


def _name(keys: KeyFile | None, key: bytes) -> str | None:
    return keys.keys.name_of(key) if keys is not None and key else None


def is_admins(path: str) -> bool:
    """Whether a path changes what is served: those below a model."""
    return path.startswith(ADMIN_FOLDER) and "/" in path.removeprefix(ADMIN_FOLDER)


def is_open(path: str) -> bool:
    """Whether a path can be asked for without a key."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def _take_key(scope: Scope) -> bytes:
    """The key that a request brings, a bearer token before X-API-Key, or b"".

    It is taken out of the request's headers, so that nothing further in can log or echo it.
    """
    bearer = header = b""
    kept = []
    if scope["type"] == "websocket":
        # All that a page may add to the request of a WebSocket.
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


def document_keys(app: FastAPI, *, admin_only: bool) -> None:
    """Say in the OpenAPI document which operations want a key and how it is sent."""
    plain = app.openapi

    def with_keys() -> dict[str, Any]:
        schema = plain()
        schema["components"]["securitySchemes"] = SCHEMES
        content = {"application/problem+json": {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
        v2_content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{V2Error.__name__}"}}}
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                if is_admins(path) or not (admin_only or is_open(path)):
                    operation["security"] = [{name: []} for name in SCHEMES]
                    operation["responses"]["401"] = {
                        "description": "The API key is missing.",
                        "content": v2_content if speaks_v2(path) else content,
                    }
                if is_admins(path):
                    operation["responses"]["403"] = {
                        "description": "The API key is valid but is not an admin key.",
                        "content": content,
                    }
        return schema

    app.openapi = with_keys  # type: ignore[method-assign]  # FastAPI's documented way
