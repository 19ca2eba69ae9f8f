"""The hook for another check of keys than files; that of the guide, with signed tokens, is in test_third_party.py."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gateway.app import create_app
from gateway.errors import Forbidden, RateLimited, UserError
from gateway.hooks import Authenticator, Identity, Plugin
from gateway.limits.caller import Caller, Stages
from gateway.plugins import installed
from tests.doubles.backend import PNG, StubBackend
from tests.services import Client, client_of_app
from tests.settings import Settings


class Guest(Caller):
    """May send one image, to /predict, for one model."""

    def __init__(self) -> None:
        self.left = 1

    def check_route(self, path: str) -> None:
        if path != "/predict":
            raise Forbidden("Guests may use /predict alone.")

    async def charge(self, most_seconds: float, stages: Stages, images: int = 1) -> None:
        if self.left < images:
            raise RateLimited("Guests may send one image.")
        self.left -= images

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-images-left", b"%d" % self.left)]


class Names:
    """Whoever sends the name `owner` is an admin; `ann` and `bob` are guests."""

    admin_only = False

    def __init__(self) -> None:
        self._guests = {b"ann": Guest(), b"bob": Guest()}

    def identify(self, key: bytes) -> Identity | None:
        if key == b"owner":
            return Identity("owner", admin=True)
        return Identity(key.decode(), caller=self._guests[key]) if key in self._guests else None


class ByName(Plugin):
    def authenticator(self) -> Authenticator:
        return Names()


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


@pytest.fixture
def client(monkeypatch) -> Iterator[Client]:
    monkeypatch.setattr("gateway.api.middleware.REFUSAL_SECONDS", 0.0)
    app = create_app(Settings(_env_file=None), StubBackend(), plugins=(ByName, *installed()))
    with client_of_app(app) as client:
        yield client


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer ann.0"}, {"X-API-Key": "x"}])
def test_request_without_a_known_key_is_refused(client, headers):
    refused = client.get("/models", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    assert client.get("/health/live", headers=headers).status_code == 200


def test_known_key_names_the_client_in_the_log(client):
    with capture_logs() as events:
        assert client.get("/models", headers=key("owner")).status_code == 200
    assert [event["key"] for event in events if event["event"] == "request"] == ["owner"]


def test_caller_of_a_plugin_limits_its_requests(client):
    answers = [client.post("/predict", files={"f": PNG}, headers=key("ann")) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].headers["x-images-left"] == "0"
    assert client.post("/predict", files={"f": PNG}, headers=key("bob")).status_code == 200
    assert client.get("/models", headers=key("bob")).status_code == 403


def test_service_with_admins_or_metrics_for_keys_does_not_start_without_a_check_of_keys():
    """Else anybody could load models, or read the metrics."""

    class Admins(Plugin):
        def has_admins(self) -> bool:
            return True

    class OnlyAdmins(Names):
        admin_only = True

    class AdminNames(Plugin):
        def authenticator(self) -> Authenticator:
            return OnlyAdmins()

    with pytest.raises(UserError, match="no plug-in checks keys"):
        create_app(Settings(_env_file=None), StubBackend(), plugins=(Admins,))
    with pytest.raises(UserError, match="GATEWAY_METRICS_ACCESS"):
        create_app(Settings(_env_file=None, metrics_access="key"), StubBackend(), plugins=(AdminNames,))


def test_openapi_document_declares_the_key(client):
    operation = client.get("/openapi.json", headers=key("owner")).json()["paths"]["/predict"]["post"]
    assert operation["security"]
    assert "401" in operation["responses"]
