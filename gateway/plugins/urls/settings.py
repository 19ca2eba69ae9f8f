"""The settings of images by URL."""

import ipaddress
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from gateway.errors import Overloaded
from gateway.plugins.urls.addresses import HIDING
from gateway.plugins.urls.errors import FetchTimeout
from gateway.plugins.urls.locations import read_prefix
from gateway.settings import FixedLimit, FixedLimits, Listed, Pairs, Section

FETCH_TIMEOUT_SECONDS = 10.0
"""Time to fetch one image, its redirects included; an image whose host needs longer can be uploaded."""
MAX_FETCHES = 64
"""Images that one process fetches at once; the others wait for `max_wait_seconds` at most. Add processes for more."""


def _url_prefixes(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check prefixes of URLs."""
    for text in given:
        try:
            read_prefix(text)
        except ValueError as exc:
            msg = f"{text!r} {exc}; a prefix is such as https://images.example.com/products/ or https://*.example.com"
            raise ValueError(msg) from exc
    return given


def _networks(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check networks of IP addresses."""
    for text in given:
        try:
            network = ipaddress.ip_network(text)
        except ValueError:
            msg = f"{text!r} is not a network, such as 10.20.0.0/16 or fd00:1234::/48"
            raise ValueError(msg) from None
        if network.version == 6 and any(map(network.overlaps, HIDING)):
            msg = f"{text!r} has addresses that lead to any IPv4 address; name the IPv4 networks instead"
            raise ValueError(msg)
    return given


class UrlSettings(Section):
    """Images by URL."""

    fixed_limits: ClassVar[FixedLimits] = {
        "fetch_timeout_seconds": FixedLimit(FETCH_TIMEOUT_SECONDS, "seconds", FetchTimeout),
        "max_fetches": FixedLimit(MAX_FETCHES, "images", Overloaded),
    }

    needs: ClassVar[Pairs] = (("fetch_networks", "fetch_urls"),)

    fetch_urls: Annotated[Listed, AfterValidator(_url_prefixes)] = ()
    """Prefixes of URLs from which images may be fetched, such as https://host/folder/."""
    fetch_networks: Annotated[Listed, AfterValidator(_networks)] = ()
    """Private networks from which images may be fetched, such as 10.20.0.0/16."""
