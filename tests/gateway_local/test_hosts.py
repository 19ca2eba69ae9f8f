import pytest

from gateway_local.hosts import authority, is_loopback, reachable


@pytest.mark.parametrize(
    ("host", "connects_to", "stands_in_a_url_as"),
    [
        ("0.0.0.0", "127.0.0.1", "127.0.0.1:80"),  # noqa: S104  # what is tested
        ("::", "::1", "[::1]:80"),
        ("::1", "::1", "[::1]:80"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.7:80"),
        ("gateway.example", "gateway.example", "gateway.example:80"),
    ],
)
def test_listening_host_has_a_reachable_address(host, connects_to, stands_in_a_url_as):
    assert reachable(host) == connects_to
    assert authority(host, 80) == stands_in_a_url_as


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1:8001", True), ("localhost:8001", True), ("[::1]:8001", True), ("192.0.2.7:8001", False)],
)
def test_loopback_addresses_are_this_machine(address, local):
    assert is_loopback(address) is local
