"""Authentication by API key: requests without a valid key are refused before the body is read."""

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.problems import is_v2_path, note, problem
from gateway.api.request_context import request_context_of
from gateway.api.schemas import Problem
from gateway.errors import Forbidden, Unauthorized
from gateway.keys import KeyFile
from gateway.oip.documents import V2Error

OPEN_PATHS = frozenset({"/", "/metrics", "/docs", "/openapi.json"})
OPEN_FOLDERS = ("/health/", "/v2/health/", "/docs/", "/assets/")
"""Health probes, metrics, and the pages on which a key can be entered; all other paths need a key, even without a
route."""

ADMIN_FOLDER = "/models/"
KEY_SUBPROTOCOL = "gateway-key."
"""Prefix of the key among the subprotocols of a WebSocket: web pages cannot send headers with a handshake."""

MISSING = "An API key is required: send it as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'."
UNKNOWN = "Unknown API key: it may have been removed, or copied incompletely."
NO_ADMIN = "This key cannot manage models; use an admin key."
SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


class RequireKey:
    """Requires a valid key for all paths but the open ones, and an admin key for admin paths.

    Without `keys` only admin paths need a key; without `admin_keys` no key is an admin key. Admin keys are valid for
    every path. Must run inside RequestContextMiddleware, whose log event gets the name of the key as `key`.
    """

    def __init__(self, app: ASGIApp, keys: KeyFile | None, admin_keys: KeyFile | None = None) -> None:
        self._app = app
        self._keys = keys
        self._admin_keys = admin_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or respond with 401 (RFC 6750, section 3) or 403 without reading the body."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        key = _take_key(scope)
        if is_open(scope["path"]):
            known = _name(self._admin_keys, key) or _name(self._keys, key)
            request_context_of(scope).shows_details = known is not None
            await self._app(scope, receive, send)
            return
        needs_admin = is_admin_path(scope["path"])
        if not needs_admin and self._keys is None:
            await self._app(scope, receive, send)
            return
        event = request_context_of(scope).event
        admin = _name(self._admin_keys, key)
        name = admin or _name(self._keys, key)
        if name is None or (needs_admin and admin is None):
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


def is_admin_path(path: str) -> bool:
    """Whether a path loads or unloads a model."""
    return path.startswith(ADMIN_FOLDER) and "/" in path.removeprefix(ADMIN_FOLDER)


def is_open(path: str) -> bool:
    """Whether a path needs no key."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


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


def document_keys(app: FastAPI, *, admin_only: bool) -> None:
    """Declare in the OpenAPI document which operations need a key, and how to send it."""
    plain = app.openapi

    def with_keys() -> dict[str, Any]:
        schema = plain()
        schema["components"]["securitySchemes"] = SCHEMES
        content = {"application/problem+json": {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
        v2_content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{V2Error.__name__}"}}}
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                if is_admin_path(path) or not (admin_only or is_open(path)):
                    operation["security"] = [{name: []} for name in SCHEMES]
                    operation["responses"]["401"] = {
                        "description": "The API key is missing.",
                        "content": v2_content if is_v2_path(path) else content,
                    }
                if is_admin_path(path):
                    operation["responses"]["403"] = {
                        "description": "The API key is valid but is not an admin key.",
                        "content": content,
                    }
        return schema

    app.openapi = with_keys  # type: ignore[method-assign]  # FastAPI's documented way
