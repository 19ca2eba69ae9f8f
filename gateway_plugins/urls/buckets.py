"""The kinds of buckets that the settings name, each opened with the service's own identity."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from gateway.errors import UserError
from gateway_plugins.shared.extras import install
from gateway_plugins.urls.fetcher import ImageBucket
from gateway_plugins.urls.locations import read_prefix
from gateway_plugins.urls.settings import UrlSettings


class BucketsUnavailable(UserError):
    """Images are to be fetched from buckets, but a package or the credentials for that are missing."""


@dataclass(frozen=True, slots=True)
class BucketKind:
    """A kind of bucket: the packages that it needs, the extra that has them, and how it is opened."""

    packages: tuple[str, ...]
    extra: str
    open: Callable[[], ImageBucket]
    """Raises LookupError if the service has no identity: what is missing, and what to do."""


def open_buckets(settings: UrlSettings) -> dict[str, ImageBucket]:
    """The kinds of buckets in `fetch_urls`, by their schemes; raises BucketsUnavailable."""
    schemes = {read_prefix(text).location.scheme for text in settings.fetch_urls}
    return {scheme: _open(scheme, kind) for scheme, kind in KINDS.items() if scheme in schemes}


def _open(scheme: str, kind: BucketKind) -> ImageBucket:
    for package in kind.packages:
        if find_spec(package) is None:
            raise BucketsUnavailable(
                f"GATEWAY_FETCH_URLS names {scheme}://, but the package {package} is not installed: "
                f"{install(kind.extra)}, or remove the prefix"
            )
    try:
        return kind.open()
    except LookupError as exc:
        raise BucketsUnavailable(f"GATEWAY_FETCH_URLS names {scheme}://, but {exc}") from exc


def _open_s3() -> ImageBucket:
    from gateway_plugins.urls.s3 import S3  # an optional dependency

    return S3.open()


def _open_google_storage() -> ImageBucket:
    from gateway_plugins.urls.google_storage import GoogleStorage  # an optional dependency

    return GoogleStorage.open()


KINDS = {
    "s3": BucketKind(("botocore",), "s3", _open_s3),
    "gs": BucketKind(("google.auth", "requests"), "gcs", _open_google_storage),
}
