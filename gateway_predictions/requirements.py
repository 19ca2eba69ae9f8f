"""Checks for the packages that a log needs, before anything starts."""

from importlib.util import find_spec
from pathlib import Path

from gateway.errors import UserError
from gateway.settings import variable
from gateway_plugins.shared.extras import install

BUCKETS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""The package of each kind of bucket, beside fsspec."""
WEB = ("http", "https")


class LogUnavailable(UserError):
    """The prediction log cannot be used; the message states the reason and what to do."""


def scheme_of(url: str) -> str:
    """The scheme of a log's URL in lower case; "file" for a path."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else "file"


def folder_of(url: str) -> Path | None:
    """The folder of a log on this machine; None for a bucket or a collector."""
    if scheme_of(url) != "file":
        return None
    return Path(url.partition("://")[2] if "://" in url else url).expanduser().resolve()


def is_collector(url: str) -> bool:
    """Whether events are sent to a collector, which cannot be read back."""
    return scheme_of(url) in WEB


def check_packages(url: str) -> None:
    """Raise LogUnavailable if a package is missing that the log at a URL needs."""
    scheme = scheme_of(url)
    where = f"{variable('log_predictions')}={url}"
    if scheme in WEB:
        return
    if find_spec("pyarrow") is None:
        raise LogUnavailable(f"{where} needs PyArrow: {install('log')}")
    if scheme == "file":
        return
    package = BUCKETS.get(scheme)
    if package is None:
        known = ", ".join(f"{name}://" for name in ("file", *BUCKETS, *WEB))
        raise LogUnavailable(f"{where}: {scheme}:// is not supported; use a folder, or one of {known}")
    if find_spec("fsspec") is None or find_spec(package) is None:
        command = install("log", "s3") if package == "s3fs" else f"pip install {package}"
        raise LogUnavailable(f"{where} needs {package}: {command}")
