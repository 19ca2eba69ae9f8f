"""Attacks by URL cost little and reach nothing, against a gateway without a Triton."""

import itertools

import pytest

from bench.attack.target import Case, Target
from bench.attack.urls import CASES, HOST, OPTIONS, PORT, hostile_host, post_urls
from gateway_local.hosts import LOOPBACK
from tests.attack.test_parsers import cheap
from tests.processes import Gateway

pytestmark = pytest.mark.slow

SETTINGS = dict(OPTIONS.settings)
INSIDE = (
    *("169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "[::ffff:169.254.169.254]"),
    *("[64:ff9b::a9fe:a9fe]", "[fd00:ec2::254]", "168.63.129.16", "100.100.100.200", "10.0.0.1", "0", "[::1]"),
    *("[2002:7f00:1::]", "192.168.0.1", "[fe80::1]", "224.0.0.1"),
)
"""Addresses of metadata services and private networks, in every way to write them."""
ODD = (
    *("file:///etc/passwd", "gopher://127.0.0.1/", "http://a@b/", f"http://{LOOPBACK}:22/", f"{HOST}/../x"),
    *("http://\u24dbocalhost/", "http://localhost\u3002/", "http://a b/", "http://[::1", "http://" + "a" * 4_000),
    *("", "//x", "http://x/%0d%0aHost:%20y\r\n", f"http://{LOOPBACK}:{PORT}@169.254.169.254/", "s3://bucket/x"),
)
"""URLs that are invalid, or that two parsers read in two ways."""


@pytest.mark.parametrize("attack", CASES, ids=lambda attack: attack.name)
def test_attack_is_cheap_and_reaches_nothing(gateway: Gateway, attack: Case):
    with cheap(gateway):
        answer = attack.send(Target("127.0.0.1", gateway.port))
        assert answer.startswith("422 "), answer


@pytest.mark.parametrize(
    "urls",
    [[f"http://{host}/" for host in INSIDE], ODD],
    ids=["addresses of private networks", "URLs that two parsers read in two ways"],
)
def test_url_that_must_not_be_fetched_is_refused(gateway: Gateway, urls: list[str]):
    for url in urls:
        assert post_urls(Target("127.0.0.1", gateway.port), [url]) == "422 url_not_allowed", url


def test_redirect_to_a_private_network_is_refused(gateway: Gateway):
    """Redirects to the metadata services of clouds, and to the service's own machine."""
    heads = itertools.cycle(
        f"HTTP/1.1 302 Found\r\nLocation: http://{host}/latest/meta-data/\r\nContent-Length: 0\r\n\r\n".encode()
        for host in INSIDE
    )
    with hostile_host(lambda connection: connection.sendall(next(heads))):
        urls = [f"{HOST}/{number}.jpg" for number in range(len(INSIDE))]
        assert post_urls(Target("127.0.0.1", gateway.port), urls) == "422 url_not_allowed"
