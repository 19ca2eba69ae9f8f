import httpx
import pytest

from gateway.values.clients import address_of, client_of
from tests.doubles.backend import PNG, StubBackend
from tests.services import client_of as client_of_service


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


def test_model_is_loaded_for_the_address_of_a_client_without_a_key():
    """Clients without a key were one client, so that each could keep models of the others unloaded."""
    clients = []

    class Loader:
        async def loaded(self, model_name, deadline, client="") -> None:
            clients.append(client)

    backend = StubBackend()
    backend.loader = Loader()
    with client_of_service(backend) as service:
        assert service.post("/predict", files={"f": ("c.png", PNG)}).status_code == httpx.codes.OK
    assert clients == ["address 127.0.0.1"]
