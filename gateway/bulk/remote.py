"""Pictures in buckets, and wherever else fsspec has a file system for: s3://, gs://, https:// and others."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gateway.client import Picture
from gateway.errors import UserError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


class RemoteUnavailable(UserError):
    """The bucket cannot be reached, or the package for it is missing."""


def is_url(source: str) -> bool:
    """Whether a source is a URL, not a path."""
    return _URL.match(source) is not None


def list_urls(url: str, wanted: Callable[[str], bool]) -> Iterator[Picture]:
    """One object, the objects that match a glob, or those below a prefix whose names are wanted."""
    system, path = _open(url)
    protocol = url.partition("://")[0]
    try:
        if any(sign in path for sign in "*?["):
            names = iter(system.glob(path))
        elif system.isfile(path):
            yield Picture(url, partial(_read, system, path))
            return
        else:
            names = (name for name in _below(system, path) if wanted(name))
        found = False
        for name in names:
            found = True
            yield Picture(
                f"{protocol}://{name.removeprefix(f'{protocol}://').lstrip('/')}", partial(_read, system, name)
            )
    except Exception as exc:  # what each file system's own client raises, such as botocore's NoCredentialsError
        raise RemoteUnavailable(f"{url} cannot be listed: {exc or type(exc).__name__}") from exc
    if not found:
        raise RemoteUnavailable(f"{url} contains no pictures")


def picture_at(url: str) -> Picture:
    """One object, by its URL."""
    system, path = _open(url)
    return Picture(url, partial(_read, system, path))


def _below(system: Any, path: str) -> Iterator[str]:  # noqa: ANN401  # fsspec has no types
    for folder, _, files in system.walk(path):
        for name in sorted(files):
            yield f"{folder.rstrip('/')}/{name}"


def _read(system: Any, path: str) -> bytes:  # noqa: ANN401
    try:
        data: bytes = system.cat_file(path)
    except FileNotFoundError as exc:  # whose text is the name alone
        raise OSError(exc.strerror or "there is no such object") from exc
    except OSError:
        raise
    except Exception as exc:  # what each file system's own client raises
        raise OSError(str(exc)) from exc
    return data


def _open(url: str) -> tuple[Any, str]:
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
