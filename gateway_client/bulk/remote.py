"""Images in buckets and other fsspec file systems: s3://, gs://, https:// and others."""

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx

from gateway_client import NamedImage
from gateway_client.bulk import BulkError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
MAX_REDIRECTS = 5
DOWNLOAD_SILENCE_SECONDS = 30.0
DOWNLOAD_SECONDS = 300.0
"""Maximum time to download an image from an http:// URL."""
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


class RemoteUnavailable(BulkError):
    """The bucket cannot be reached, or the package for it is missing."""


def is_url(source: str) -> bool:
    """Whether a source is a URL rather than a path."""
    return _URL.match(source) is not None


def list_urls(url: str, wanted: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    """Yield one object, the objects that match a glob, or the wanted names below a prefix."""
    if _is_web(url) and not url.endswith("/") and not any(sign in url for sign in "*["):
        yield image_at(url, max_file_bytes)
        return
    system, path = open_url(url)
    protocol = url.partition("://")[0]
    try:
        if any(sign in path for sign in "*?["):
            names = iter(system.glob(path))
        elif system.isfile(path):
            yield NamedImage(url, partial(_read, system, path, max_file_bytes))
            return
        else:
            names = (name for name in _below(system, path) if wanted(name))
        found = False
        for name in names:
            found = True
            found_url = f"{protocol}://{name.removeprefix(f'{protocol}://').lstrip('/')}"
            if _is_web(found_url):
                yield image_at(found_url, max_file_bytes)
            else:
                yield NamedImage(found_url, partial(_read, system, name, max_file_bytes))
    except Exception as exc:  # each file system raises its own errors, such as botocore's NoCredentialsError
        raise RemoteUnavailable(f"{url} cannot be listed: {exc or type(exc).__name__}") from exc
    if not found:
        raise RemoteUnavailable(f"{url} {_why_empty(system, path)}")


def _why_empty(system: Any, path: str) -> str:  # noqa: ANN401  # fsspec has no types
    """Whether there is no such bucket, nothing below the prefix, or nothing that is an image."""
    bucket = path.lstrip("/").partition("/")[0]
    try:
        system.ls(bucket, detail=False)
    except FileNotFoundError:
        return f"cannot be listed: there is no bucket {bucket!r}"
    except Exception:  # the bucket may forbid to list more than the prefix
        return "contains no images"
    return "contains no images"


def image_at(url: str, max_file_bytes: int) -> NamedImage:
    """One object, by its URL; at most `max_file_bytes` + 1 bytes of it are read."""
    if _is_web(url):
        return NamedImage(url, partial(_download, url, max_file_bytes))
    if "::" in url:
        return NamedImage(url, partial(_refuse, "chained URLs, with ::, are not supported"))
    try:
        system, path = open_url(url)
    except RemoteUnavailable as exc:
        return NamedImage(url, partial(_refuse, str(exc)))
    return NamedImage(url, partial(_read, system, path, max_file_bytes))


def _refuse(reason: str) -> bytes:
    raise OSError(reason)


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _download(url: str, max_file_bytes: int) -> bytes:
    """Download a URL; raises OSError."""
    try:
        return asyncio.run(_downloaded(url, max_file_bytes))
    except TimeoutError:
        raise OSError(f"it has not arrived within {DOWNLOAD_SECONDS:g} s") from None
    except httpx.HTTPStatusError as exc:
        raise OSError(f"the server answers with status {exc.response.status_code}") from exc
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, httpx.CookieConflict, ValueError) as exc:
        raise OSError(str(exc) or type(exc).__name__) from exc


async def _downloaded(url: str, max_file_bytes: int) -> bytes:
    """Download under one deadline for everything, since a server may redirect or drip bytes."""
    async with (
        asyncio.timeout(DOWNLOAD_SECONDS),
        httpx.AsyncClient(follow_redirects=True, max_redirects=MAX_REDIRECTS, timeout=DOWNLOAD_SILENCE_SECONDS) as web,
        web.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response,
    ):
        response.raise_for_status()
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise OSError("the server sends it compressed, although the request excludes that")
        data = bytearray()
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
    except FileNotFoundError as exc:  # its text is only the name
        raise OSError(exc.strerror or "there is no such object") from exc
    except OSError:
        raise
    except Exception as exc:  # each file system raises its own errors
        raise OSError(str(exc)) from exc
    return data[: max_file_bytes + 1]


def open_url(url: str) -> tuple[Any, str]:
    """The file system of a URL, by fsspec, and the path in it; raises RemoteUnavailable."""
    protocol = url.partition("://")[0]
    package = PACKAGES.get(protocol, "fsspec and what it needs for this protocol")
    missing = f"{protocol}:// needs {package}: pip install {PACKAGES.get(protocol, 'fsspec')}"
    try:
        import fsspec
    except ImportError as exc:
        raise RemoteUnavailable(missing) from exc
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as exc:
        raise RemoteUnavailable(missing) from exc
    except Exception as exc:
        raise RemoteUnavailable(f"{url} cannot be opened: {exc or type(exc).__name__}") from exc
    return system, str(path)
