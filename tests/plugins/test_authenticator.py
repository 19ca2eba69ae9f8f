"""The hook for another check of keys than files: signed tokens, by a plug-in from outside the repository."""

import hashlib
import hmac
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

SECRET = b"secret"


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


class SignedTokens:
    """Tokens NAME.SIGNATURE; every name but `owner` is a guest's."""

    admin_only = False

    def __init__(self) -> None:
        self._guests: dict[str, Guest] = {}

    def identify(self, key: bytes) -> Identity | None:
        name, _, signature = key.decode("latin-1").rpartition(".")
        if not hmac.compare_digest(signature, sign(name)):
            return None
        if name == "owner":
            return Identity(name, admin=True)
        return Identity(name, caller=self._guests.setdefault(name, Guest()))


class Tokens(Plugin):
    def authenticator(self) -> Authenticator:
        return SignedTokens()


def sign(name: str) -> str:
    return hmac.new(SECRET, name.encode(), hashlib.sha256).hexdigest()


def token(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}.{sign(name)}"}


@pytest.fixture
def client(monkeypatch) -> Iterator[Client]:
    monkeypatch.setattr("gateway.api.middleware.REFUSAL_SECONDS", 0.0)
    app = create_app(Settings(_env_file=None), StubBackend(), plugins=(Tokens, *installed()))
    with client_of_app(app) as client:
        yield client


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer ann.0"}, {"X-API-Key": "x"}])
def test_request_without_a_valid_token_is_refused(client, headers):
    refused = client.get("/models", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    assert client.get("/health/live", headers=headers).status_code == 200


def test_valid_token_names_the_client_in_the_log(client):
    with capture_logs() as events:
        assert client.get("/models", headers=token("owner")).status_code == 200
    assert [event["key"] for event in events if event["event"] == "request"] == ["owner"]


def test_caller_of_a_plugin_limits_its_requests(client):
    answers = [client.post("/predict", files={"f": PNG}, headers=token("ann")) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].headers["x-images-left"] == "0"
    assert client.post("/predict", files={"f": PNG}, headers=token("bob")).status_code == 200
    assert client.get("/models", headers=token("bob")).status_code == 403


def test_service_with_admins_or_metrics_for_keys_does_not_start_without_a_check_of_keys():
    """Else anybody could load models, or read the metrics."""

    class Admins(Plugin):
        def has_admins(self) -> bool:
            return True

    class OnlyAdmins(SignedTokens):
        admin_only = True

    class AdminTokens(Plugin):
        def authenticator(self) -> Authenticator:
            return OnlyAdmins()

    with pytest.raises(UserError, match="no plug-in checks keys"):
        create_app(Settings(_env_file=None), StubBackend(), plugins=(Admins,))
    with pytest.raises(UserError, match="GATEWAY_METRICS_ACCESS"):
        create_app(Settings(_env_file=None, metrics_access="key"), StubBackend(), plugins=(AdminTokens,))


def test_openapi_document_declares_the_key(client):
    operation = client.get("/openapi.json", headers=token("owner")).json()["paths"]["/predict"]["post"]
    assert operation["security"]
    assert "401" in operation["responses"]
