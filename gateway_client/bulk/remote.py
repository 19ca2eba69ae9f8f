"""Images in buckets and at other addresses, by fsspec's file systems (s3://, gs://, https://)."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gateway_client import NamedImage
from gateway_client.bulk import BulkError
from gateway_client.files import is_hidden

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(source: str) -> bool:
    """Whether a source is a URL rather than a path."""
    return _URL.match(source) is not None


def list_urls(url: str, wants: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    """Yield one object, the objects that match a glob, or the wanted names below a prefix; raises BulkError."""
    system, path = _open(url)
    protocol = url.partition("://")[0]
    empty = True
    try:
        if any(sign in path for sign in "*?["):
            names: Iterator[str] = (name for name in system.glob(path) if is_hidden(path) or not is_hidden(name))
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
        raise BulkError(
            f"{url} needs another package: {exc}; pip install fsspec s3fs for s3://, fsspec aiohttp for https://"
        ) from exc
    except Exception as exc:
        raise BulkError(f"{url} cannot be opened: {exc or type(exc).__name__}") from exc
    return system, str(path)
