"""Models from https:// and buckets: downloaded once, and used only if their SHA-256 is the expected one."""

import contextlib
import hashlib
import re
from collections.abc import Callable, Generator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.errors import UserError
from gateway.values.files import whole_file
from gateway.values.safe_path import UnsafePath, safe_name
from gateway_local.paths import default_cache_dir

if TYPE_CHECKING:
    import httpx

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
"""The package that fsspec needs for each bucket protocol."""
MAX_BYTES = 64 * 2**30
BLOCK_BYTES = 2**20
TIMEOUT_SECONDS = 60.0
"""The time limit for connecting, and for each read."""
MAX_REDIRECTS = 5
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
            _save(url, draft, wanted)
    except DownloadError:
        raise
    except ImportError as exc:
        raise DownloadError(f"{url} needs {PACKAGES[protocol]}: pip install {PACKAGES[protocol]}") from exc
    except Exception as exc:  # of httpx, the file system, and the library of each kind of bucket
        raise DownloadError(f"{url} cannot be fetched: {str(exc) or type(exc).__name__}") from exc
    return target


def _save(url: str, draft: Path, sha256: str) -> None:
    """Write a URL's bytes; raises DownloadError if there are too many, or other ones."""
    hasher, size = hashlib.sha256(), 0
    with draft.open("wb") as file, contextlib.closing(_blocks(url)) as blocks:
        for block in blocks:
            size += len(block)
            if size > MAX_BYTES:
                raise DownloadError(f"{url} is larger than {MAX_BYTES // 2**30} GiB, too large for a classifier")
            hasher.update(block)
            file.write(block)
    if hasher.hexdigest() != sha256:
        raise DownloadError(
            f"{url} has the SHA-256 {hasher.hexdigest()}, but --sha256 expects {sha256}: it is another file"
        )


def _blocks(url: str) -> Generator[bytes]:
    if urlsplit(url).scheme != "https":
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
        with system.open(path, "rb") as file:
            yield from iter(lambda: file.read(BLOCK_BYTES), b"")
        return
    import httpx

    hooks = {"request": [_check_https]}  # of each redirect as well
    with (
        httpx.Client(timeout=TIMEOUT_SECONDS, max_redirects=MAX_REDIRECTS, event_hooks=hooks) as client,
        client.stream("GET", url, follow_redirects=True) as response,
    ):
        if response.status_code != httpx.codes.OK:
            raise DownloadError(f"{url} answers {response.status_code} {response.reason_phrase}")
        yield from response.iter_bytes(BLOCK_BYTES)


def _check_https(request: "httpx.Request") -> None:
    if request.url.scheme != "https":
        raise DownloadError(f"{request.url} is not fetched: only https is allowed")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
