"""The settings of images by URL."""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from gateway.errors import FetchTimeout, Overloaded
from gateway.settings import Limits, Listed, Pairs, Section
from gateway.values import setting_values


class UrlSettings(Section):
    """Images by URL."""

    limits: ClassVar[Limits] = {
        "fetch_timeout_seconds": ("seconds", FetchTimeout),
        "max_fetches": ("images", Overloaded),
    }

    needs: ClassVar[Pairs] = (("fetch_networks", "fetch_urls"),)

    fetch_urls: Annotated[Listed, AfterValidator(setting_values.url_prefixes)] = ()
    """Prefixes of URLs from which images may be fetched, with commas: https://host/folder/, s3://bucket/, gs://bucket/."""
    fetch_networks: Annotated[Listed, AfterValidator(setting_values.networks)] = ()
    """Networks besides the public internet from which images may be fetched, with commas, such as 10.20.0.0/16."""
    fetch_timeout_seconds: float = Field(10.0, gt=0, le=3_600)
    """Time to fetch one image, its redirects included; then its error is `fetch_timeout`."""
    max_fetches: int = Field(64, ge=1, le=10_000)
    """Images that one process fetches at once; the others wait for `max_wait_seconds` at most, then `overloaded`."""
