"""Headers of every response of the application: what browsers may do with it, and that it is not stored."""

from collections.abc import Iterable

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Pages of other origins cannot embed a response; CORS decides whether they may read one.
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'self'",
}
NO_STORE = (b"cache-control", b"no-store")
DEFAULT_HEADERS = [*((name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()), NO_STORE]
"""What is added to a response that has none of SETTLED."""
SETTLED = frozenset({*(name for name, _ in DEFAULT_HEADERS), b"etag"})

Headers = Iterable[tuple[bytes, bytes]]


def missing(headers: Headers) -> Headers:
    """The default headers that a response does not set itself."""
    given = dict(headers)
    # A response with an ETag is a static file, which may be cached; all others must not be stored.
    return [each for each in DEFAULT_HEADERS if each[0] not in given and not (each is NO_STORE and b"etag" in given)]
