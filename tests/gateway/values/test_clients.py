import pytest

from gateway.values.clients import address_of, client_of


@pytest.mark.parametrize(
    ("address", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
    ],
)
def test_network_of_64_bits_is_one_client(address, other, same):
    clients = [client_of("", address_of({"client": (each, 1)})) for each in (address, other)]
    assert (clients[0] == clients[1]) is same
    assert client_of("app", address) == client_of("app", other) == "key app"


def test_socket_of_the_machine_has_no_address():
    assert address_of({}) == address_of({"client": None}) == ""
