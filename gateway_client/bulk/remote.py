"""Images in buckets and at other addresses: fsspec's file systems (s3://, gs://, …), and http:// by httpx."""

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx

from gateway_client import NamedImage
from gateway_client.bulk import BulkError
from gateway_client.files import is_hidden

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
MAX_REDIRECTS = 5
DOWNLOAD_SILENCE_SECONDS = 30.0
DOWNLOAD_SECONDS = 300.0
"""Maximum time to download an image from an http:// URL."""


def is_url(source: str) -> bool:
    """Whether a source is a URL rather than a path."""
    return _URL.match(source) is not None


def list_urls(url: str, wants: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    """Yield one object, the objects that match a glob, or the wanted names below a prefix; raises BulkError."""
    if _is_web(url):
        yield image_at(url, max_file_bytes)
        return
    system, path = _open(url)
    protocol = url.partition("://")[0]
    empty = True
    try:
        if any(sign in path for sign in "*?["):
            names = (name for name in system.glob(path) if is_hidden(path) or not is_hidden(name))
        elif system.isfile(path):
            names = iter([path])
        else:
            names = (name for name in _below(system, path) if wants(name.removeprefix(path)))
        for name in names:
            empty = False
            yield NamedImage(
                f"{protocol}://{name.removeprefix(f'{protocol}://').lstrip('/')}",
                partial(_read, system, name, max_file_bytes),
            )
    except Exception as exc:  # each file system raises its own errors, such as botocore's NoCredentialsError
        raise BulkError(f"{url} cannot be listed: {exc or type(exc).__name__}") from exc
    if empty:
        raise BulkError(f"{url} contains no images, or does not exist")


def image_at(url: str, max_file_bytes: int) -> NamedImage:
    """One object, by its URL; at most `max_file_bytes` + 1 bytes of it are read."""
    if _is_web(url):
        return NamedImage(url, partial(_download, url, max_file_bytes))
    if "::" in url:
        return NamedImage(url, partial(refuse, "chained URLs, with ::, are not supported"))
    try:
        system, path = _open(url)
    except BulkError as exc:
        return NamedImage(url, partial(refuse, str(exc)))
    return NamedImage(url, partial(_read, system, path, max_file_bytes))


def refuse(reason: str) -> bytes:
    """Read an image that cannot be read."""
    raise OSError(reason)


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _download(url: str, max_file_bytes: int) -> bytes:
    """Download a URL; raises OSError."""
    try:
        return asyncio.run(_downloaded(url, max_file_bytes))
    except TimeoutError:
        raise OSError(f"it has not arrived within {DOWNLOAD_SECONDS:g} s") from None
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, httpx.CookieConflict, ValueError) as exc:
        raise OSError(str(exc) or type(exc).__name__) from exc


async def _downloaded(url: str, max_file_bytes: int) -> bytes:
    """Download under one deadline for everything, since a server may redirect or drip bytes."""
    data = bytearray()
    async with (
        asyncio.timeout(DOWNLOAD_SECONDS),
        httpx.AsyncClient(follow_redirects=True, max_redirects=MAX_REDIRECTS, timeout=DOWNLOAD_SILENCE_SECONDS) as web,
        web.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response,
    ):
        response.raise_for_status()
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise OSError("the server sends it compressed, although the request excludes that")
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > max_file_bytes:
                break
    return bytes(data[: max_file_bytes + 1])


def _below(system: Any, path: str) -> Iterator[str]:  # noqa: ANN401  # fsspec has no types
    for folder, _, files in system.walk(path):
        for name in sorted(files):
            yield f"{folder.rstrip('/')}/{name}"


def _read(system: Any, path: str, max_file_bytes: int) -> bytes:  # noqa: ANN401
    try:
        data: bytes = system.cat_file(path, end=max_file_bytes + 1)
    except Exception as exc:  # each file system raises its own errors
        gone = isinstance(exc, FileNotFoundError)  # its text is only the name
        raise OSError("there is no such object" if gone else str(exc) or type(exc).__name__) from exc
    return data[: max_file_bytes + 1]


def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL, by fsspec, and the path in it; raises BulkError."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
    except ImportError as exc:
        raise BulkError(f"{url} needs another package: {exc}; pip install fsspec s3fs for s3://") from exc
    except Exception as exc:
        raise BulkError(f"{url} cannot be opened: {exc or type(exc).__name__}") from exc
    return system, str(path)
