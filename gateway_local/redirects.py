"""GET through redirects: the one rule for requests that carry credentials.

Authorization goes to one origin (scheme, host and port) and is never sent again once a redirect has left it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urljoin

import httpx

MAX_REDIRECTS = 5

Check = Callable[[httpx.URL], str]
"""Says why a URL is not allowed; "" if it is."""


class RedirectRefused(Exception):
    """A URL, or one that it leads to, is not requested; the message starts with "leads to" or "redirects"."""


def https_only(url: httpx.URL) -> str:
    """The check of URLs that must be encrypted."""
    return "" if url.scheme == "https" and url.host else "only https is allowed"


@contextmanager
def get(
    client: httpx.Client,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    authorization: str | None = None,
    check: Check = https_only,
) -> Iterator[httpx.Response]:
    """Yield the response, whose body has not been read. `check` sees each URL before it is requested.

    Raises RedirectRefused and httpx.HTTPError.
    """
    target = _checked(url, check)
    for _ in range(MAX_REDIRECTS + 1):
        own = {"Authorization": authorization} if authorization else {}
        request = client.build_request("GET", target, headers={**(headers or {}), **own})
        response = client.send(request, stream=True, follow_redirects=False)
        try:
            if not response.has_redirect_location:
                yield response
                return
        finally:
            response.close()
        before, target = target, _joined(target, response.headers["location"], check)
        if origin(before) != origin(target):
            authorization = None
    raise RedirectRefused(f"redirects more than {MAX_REDIRECTS} times")


def origin(url: httpx.URL) -> tuple[str, str, int]:
    """The scheme, host and port of a URL; a default port is the same as none."""
    return url.scheme, url.host, url.port or {"https": 443, "http": 80}.get(url.scheme, 0)


def _joined(url: httpx.URL, location: str, check: Check) -> httpx.URL:
    try:
        return _checked(urljoin(str(url), location), check)
    except ValueError as exc:
        raise RedirectRefused(f"leads to {location!r}, which is no URL: {exc}") from exc


def _checked(text: str, check: Check) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as exc:
        raise RedirectRefused(f"leads to {text!r}, which is no URL: {exc}") from exc
    if reason := check(url):
        raise RedirectRefused(f"leads to {text!r}, and {reason}")
    return url
