"""The kinds of buckets that the settings name, each opened with the service's own identity."""

from importlib.util import find_spec

from gateway.errors import UserError
from gateway.locations import read_prefix
from gateway.settings import Settings
from gateway.urls.fetcher import Bucket


class BucketsUnavailable(UserError):
    """Images are to be fetched from buckets, but a package or the credentials for that are missing."""


def open_buckets(settings: Settings) -> dict[str, Bucket]:
    """The kinds of buckets in `fetch_urls`, by their schemes; raises BucketsUnavailable."""
    schemes = {read_prefix(text).location.scheme for text in settings.fetch_urls}
    buckets: dict[str, Bucket] = {}
    if "s3" in schemes:
        if find_spec("botocore") is None:
            raise BucketsUnavailable(
                "GATEWAY_FETCH_URLS names s3://, but the package botocore is not installed: "
                "pip install 'triton-image-gateway[s3]', or remove the prefix"
            )
        from gateway.urls.s3 import S3  # an optional dependency

        bucket = S3.open()
        if bucket is None:
            raise BucketsUnavailable(
                "GATEWAY_FETCH_URLS names s3://, but there are no credentials of AWS: give the service a role, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        buckets["s3"] = bucket
    return buckets
