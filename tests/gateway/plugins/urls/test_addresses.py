"""Which addresses the service connects to."""

import asyncio
import threading

import pytest

from gateway.plugins.urls import addresses
from gateway.plugins.urls.addresses import (
    HIDING,
    LOOKUPS,
    LOOKUPS_PER_DOMAIN,
    METADATA,
    AddressRule,
    Resolver,
)
from gateway.plugins.urls.settings import UrlSettings
from tests.doubles.origin import made_up_names

PUBLIC = ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
PRIVATE = [
    *("127.0.0.1", "0.1.2.3", "10.1.2.3", "100.64.0.1", "169.254.169.254", "172.31.255.255", "192.168.0.1"),
    *("192.0.0.192", "198.19.255.255", "224.0.0.1", "255.255.255.255", "168.63.129.16", "::1", "::7f00:1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::101:101"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "3fff::1"),
    *("fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%1", "fec0::1", "ff02::1"),
]


@pytest.mark.parametrize("address", [*PUBLIC, *PRIVATE])
def test_public_addresses_are_allowed_and_no_others(address):
    assert AddressRule().allows(address) is (address in PUBLIC)


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        *((address, True) for address in ("10.20.0.0", "10.20.255.255", "::ffff:10.20.0.1", "fd12::1")),
        *((address, False) for address in ("10.19.255.255", "10.21.0.0", "fd12:0:0:1::1")),
    ],
)
def test_networks_of_the_settings_are_allowed_and_none_beside_them(address, inside):
    assert AddressRule(["10.20.0.0/16", "fd12::/64"]).allows(address) is inside
    assert not AddressRule().allows(address)


@pytest.mark.parametrize("network", METADATA)
def test_metadata_is_refused_whatever_the_networks(network):
    for address in (network[0], network[-1]):
        assert not AddressRule(["0.0.0.0/0", "fc00::/7", "fe80::/10"]).allows(str(address))


@pytest.mark.parametrize("form", ["::ffff:{}", "64:ff9b::{}"])
def test_metadata_is_refused_inside_an_ipv6_address(form):
    rule = AddressRule(["0.0.0.0/0", "fc00::/7"])
    for address in ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192"):
        assert not rule.allows(form.format(address)), address
    assert rule.allows(form.format("10.1.2.3"))


@pytest.mark.parametrize("address", ["fd00::5efe:a9fe:a9fe", "2606:4700::200:5efe:a9fe:a9fe"])
def test_address_of_a_tunnel_is_refused(address):
    """By ISATAP's interface identifier, which any prefix may have."""
    assert not AddressRule(["fd00::/16"]).allows(address)


@pytest.mark.parametrize("network", [*HIDING, "::/0", "2002:7f00::/24"])
def test_network_that_leads_to_any_ipv4_address_is_refused(network):
    with pytest.raises(ValueError, match="name the IPv4 networks instead"):
        UrlSettings(fetch_urls=("https://a.example",), fetch_networks=(str(network),))


async def test_names_that_never_resolve_delay_those_of_their_domain_alone(monkeypatch):
    monkeypatch.setattr(addresses, "LOOKUP_SECONDS", 0.1)
    release, resolver = threading.Event(), Resolver()
    with made_up_names() as names:
        hosts = [f"{number}.a.Bad.test." for number in range(2 * LOOKUPS)]
        for host in hosts:
            names.add(host, release)
        names.add("a.good.test", ["1.1.1.1"])
        names.add("again.bad.test", ["1.1.1.2"])
        try:
            results = await asyncio.gather(*(resolver.addresses(host, 80) for host in hosts), return_exceptions=True)
            assert {type(result) for result in results} == {TimeoutError}
            assert len(names.lookups) == LOOKUPS_PER_DOMAIN
            assert await resolver.addresses("a.good.test", 80) == ["1.1.1.1"]
            with pytest.raises(TimeoutError):
                await resolver.addresses("again.bad.test", 80)
        finally:
            release.set()
        monkeypatch.setattr(addresses, "LOOKUP_SECONDS", 60.0)
        assert await resolver.addresses("again.bad.test", 80) == ["1.1.1.2"]
    resolver.close()
