"""API keys at the door: who has none is turned away before a byte of the body is read."""

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.problems import note, problem
from gateway.api.schemas import Problem
from gateway.errors import Unauthorized
from gateway.keys import KeyFile

OPEN_PATHS = frozenset({"/", "/metrics", "/docs", "/openapi.json"})
OPEN_FOLDERS = ("/health/", "/docs/", "/assets/")
"""Probes, Prometheus, and the pages on which a key can be entered; every other path wants a key, also one without a
route."""

MISSING = "An API key is needed: send it as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'."
UNKNOWN = "The API key is not known: it may have been removed, or copied in part."
SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


class RequireKey:
    """Lets requests with a known key pass, and everybody to the open paths.

    It stands inside RequestContext, whose event gets the key's name as `key`.
    """

    def __init__(self, app: ASGIApp, keys: KeyFile) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or answer 401 (RFC 6750, section 3) without having read the body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        key = _take_key(scope)
        if is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        name = self._keys.keys.name_of(key) if key else None
        event = scope["state"]["event"]
        if name is None:
            error = Unauthorized(UNKNOWN if key else MISSING)
            note(event, error)
            response = problem(error, scope["state"]["request_id"])
            response.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"' if key else "Bearer"
            await response(scope, receive, send)
            return
        event["key"] = name
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Whether a path can be asked for without a key."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def _take_key(scope: Scope) -> bytes:
    """The key that a request brings, a bearer token before X-API-Key, or b"".

    It is taken out of the request's headers, so that nothing further in can log or echo it.
    """
    bearer = header = b""
    kept = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            header = header or value.strip()
        elif name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                bearer = bearer or token.strip()
        else:
            kept.append((name, value))
    scope["headers"] = kept
    return bearer or header


def document_keys(app: FastAPI) -> None:
    """Say in the OpenAPI document which operations want a key and how it is sent."""
    plain = app.openapi

    def with_keys() -> dict[str, Any]:
        schema = plain()
        schema["components"]["securitySchemes"] = SCHEMES
        content = {"application/problem+json": {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                if not is_open(path):
                    operation["security"] = [{name: []} for name in SCHEMES]
                    operation["responses"]["401"] = {"description": "The API key is missing.", "content": content}
        return schema

    app.openapi = with_keys  # type: ignore[method-assign]  # FastAPI's documented way
