"""The guide to images by URL and its decision record say what the code does."""

import re
from ipaddress import ip_address

import pytest

from gateway.app import create_app
from gateway.values.locations import read_location, read_prefix
from gateway_plugins.urls import addresses, fetcher, network
from tests.doubles.backend import StubBackend
from tests.processes import PROJECT
from tests.settings import Settings

GUIDE = (PROJECT / "docs" / "guides" / "images-by-url.md").read_text()
RECORD = (PROJECT / "docs" / "adr" / "0044-images-by-url.md").read_text()


def test_prefixes_of_the_guide_can_be_read():
    table = re.findall(r"^\| `(\w+://[^`]+)` \|", GUIDE, re.MULTILINE)
    assert len(table) > 3
    for prefix in table:
        read_prefix(prefix)


def test_request_of_the_guide_is_allowed_by_its_setting():
    setting = re.search(r"^GATEWAY_FETCH_URLS=(\S+) ", GUIDE, re.MULTILINE)[1]
    allowed = [read_prefix(text) for text in setting.split(",")]
    urls = re.findall(r'{"url": "([^"]+)"}', GUIDE)
    assert len(urls) == 2
    assert all(any(prefix.contains(read_location(url)) for prefix in allowed) for url in urls)


def test_figures_are_those_of_the_code():
    assert f"{fetcher.FETCHES_PER_REQUEST} images of one request are fetched at once" in GUIDE
    assert f"At most {fetcher.MAX_REDIRECTS} are followed" in GUIDE
    assert f"more than {fetcher.MAX_REDIRECTS} redirects" in GUIDE
    reads = f"reads of {network.READ_BYTES >> 10} KiB, and of {network.HEAD_READ_BYTES >> 10} KiB before the body"
    assert f"{reads}, at most {network.MAX_OVERHEAD_BYTES >> 10} KiB" in RECORD
    assert f"in {addresses.LOOKUPS} threads" in RECORD
    assert f"at most {addresses.LOOKUPS_PER_DOMAIN} of the {addresses.LOOKUPS} threads" in GUIDE
    assert f"fails after {addresses.LOOKUP_SECONDS:g} s" in GUIDE


@pytest.mark.parametrize("address", ["::ffff:10.0.0.1", "64:ff9b::a00:1"])
def test_addresses_of_the_guide_lead_where_it_says(address):
    assert f"`{address}`" in GUIDE
    assert str(addresses.destination(ip_address(address))) == "10.0.0.1"


@pytest.mark.parametrize(("urls", "kinds"), [((), 1), (("https://a.example",), 2)])
def test_openapi_has_urls_where_they_are_allowed(urls, kinds):
    for path in ("/predict", "/embed"):
        schema = create_app(Settings(_env_file=None, fetch_urls=urls), StubBackend()).openapi()
        body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        items = body["properties"]["images"]["items"]
        assert len(items.get("anyOf", [items])) == kinds
