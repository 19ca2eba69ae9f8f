"""Models from https:// and buckets: downloaded once, and used only if their SHA-256 is the expected one."""

import hashlib
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit
from urllib.request import urlopen

from gateway.errors import UserError
from gateway.values.files import whole_file
from gateway.values.safe_path import UnsafePath, safe_name
from gateway_local.paths import default_cache_dir

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
"""The package that fsspec needs for each bucket protocol."""
TIMEOUT_SECONDS = 60.0
"""The time limit for connecting, and for each read."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


class DownloadError(UserError):
    """A file could not be downloaded, or its checksum differs; nothing is kept."""


def is_remote(text: str) -> bool:
    """Whether a SOURCE is a URL."""
    return "://" in text


def fetch(url: str, sha256: str | None, report: Callable[[str], None], *, cache: Path | None = None) -> Path:
    """Download a URL into the user's cache and return the file's path; raises DownloadError.

    A file that is in the cache is not downloaded again. `cache` is its folder.
    """
    protocol = urlsplit(url).scheme
    if protocol not in {"https", *PACKAGES}:
        raise DownloadError(
            f"{protocol}:// is not supported: use https, {', '.join(PACKAGES)}, or a file on this machine"
        )
    if not sha256:
        raise DownloadError(
            f"the file at {url} may change: add --sha256 with the checksum that its publisher gives, or that "
            "`sha256sum FILE` prints for a copy that you have tested"
        )
    wanted = sha256.lower()
    if not _SHA256.fullmatch(wanted):
        raise DownloadError(f"{sha256!r} is not a SHA-256, which is 64 digits of 0-9 and a-f")
    folder = (cache or default_cache_dir() / "sources") / wanted
    try:
        target = safe_name(PurePosixPath(urlsplit(url).path).name or "model").below(folder)
    except UnsafePath as exc:
        raise DownloadError(f"{url} cannot be kept in a file: {exc}") from exc
    if target.is_file() and _digest(target) == wanted:
        return target
    report(f"fetching {url}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as draft:
            with _opened(url) as source, draft.open("wb") as file:
                shutil.copyfileobj(source, file)
            _check(url, _digest(draft), wanted)
    except DownloadError:
        raise
    except ImportError as exc:
        raise DownloadError(f"{url} needs {PACKAGES[protocol]}: pip install {PACKAGES[protocol]}") from exc
    except Exception as exc:  # of urllib, the file system, and the library of each kind of bucket
        raise DownloadError(f"{url} cannot be fetched: {str(exc) or type(exc).__name__}") from exc
    return target


def _check(url: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise DownloadError(f"{url} has the SHA-256 {found}, but --sha256 expects {wanted}: it is another file")


def _opened(url: str) -> AbstractContextManager[IO[bytes]]:
    """The bytes behind a URL. A redirect may lead anywhere: the checksum decides."""
    if urlsplit(url).scheme == "https":
        opened: AbstractContextManager[IO[bytes]] = urlopen(url, timeout=TIMEOUT_SECONDS)  # noqa: S310  # it is https
        return opened
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    file: AbstractContextManager[IO[bytes]] = system.open(path, "rb")
    return file


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
