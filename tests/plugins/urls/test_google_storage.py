"""Images in Google Cloud Storage. No bucket of Google was ever asked: tokens, metadata and objects are a fake's."""

import json
import os
from collections.abc import Iterator

import anyio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.app import create_app
from gateway_plugins.urls import google_storage
from gateway_plugins.urls.buckets import BucketsUnavailable
from gateway_plugins.urls.locations import read_location
from tests.doubles.backend import PNG
from tests.doubles.http import Asked, Reply, http_server
from tests.plugins.urls.test_fetcher import ask, codes
from tests.processes import python
from tests.services import client_of
from tests.settings import Settings

OBJECTS = {
    "/photos/new/cat.png": "cat.png",
    "/photos/new/a%20b%2Bc%2520%3F%23.png": "a b+c%20?#.png",
    "/photos/new/Gr%C3%B6%C3%9Fe.png": "Größe.png",
    "/photos/cat.png": "cat.png",
}
"""Paths of requests, and the names of objects."""


class Google:
    """A token endpoint, a metadata server and the XML API of Cloud Storage, on loopback."""

    def __init__(self) -> None:
        self.tokens = 0
        self.token_status, self.seconds = 200, 3_600
        self.paths: list[str] = []
        self.address = ""

    def reply(self, asked: Asked) -> Reply:
        if asked.body:
            return self.token()
        self.paths.append(asked.path)
        if asked.headers.get("metadata-flavor") == "Google":
            account = {"email": "a@example.com", "scopes": [google_storage.SCOPE], "aliases": ["default"]}
            return self.token() if "/token" in asked.path else in_json(account)
        if asked.headers["authorization"] != f"Bearer token-{self.tokens}":
            return Reply(401)
        return Reply(200, PNG, {"Content-Type": "image/png"}) if asked.path in OBJECTS else Reply(404)

    def token(self) -> Reply:
        """A new token; the ones before are no longer valid."""
        if self.token_status != 200:
            return in_json({"error": "invalid_grant"}, self.token_status)
        self.tokens += 1
        return in_json({"access_token": f"token-{self.tokens}", "expires_in": self.seconds, "token_type": "Bearer"})


def in_json(document: object, status: int = 200) -> Reply:
    headers = {"Content-Type": "application/json", "Metadata-Flavor": "Google", "Connection": "close"}
    return Reply(status, json.dumps(document).encode(), headers)


@pytest.fixture
def google() -> Iterator[Google]:
    google = Google()
    with http_server(google.reply) as port:
        google.address = f"127.0.0.1:{port}"
        yield google


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


@pytest.fixture
def identity(google, private_key, tmp_path, monkeypatch):
    """A service account, whose tokens are the fake's."""
    account = {"type": "service_account", "client_email": "a@example.com", "private_key": private_key}
    file = tmp_path / "account.json"
    file.write_text(json.dumps({**account, "token_uri": f"http://{google.address}/token"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))


@pytest.fixture
def client(google, identity, monkeypatch):
    monkeypatch.setattr(google_storage, "ENDPOINT", f"http://{google.address}")
    with client_of(fetch_urls=("gs://photos/new",)) as client:
        yield client


def test_objects_are_classified_with_one_token(client, google):
    urls = [f"gs://photos/new/{name}" for path, name in OBJECTS.items() if "/new/" in path]
    answer = ask(client, *urls)
    assert codes(answer) == [None] * 3
    assert [f"gs://photos/new/{result['filename']}" for result in answer.json()["results"]] == urls
    assert google.tokens == 1


def test_token_that_expires_is_renewed(client, google):
    google.seconds = 60  # tokens are renewed some minutes before
    for count in (1, 2):
        assert codes(ask(client, "gs://photos/new/cat.png")) == [None]
        assert google.tokens == count


def test_other_objects_are_errors(client):
    others = ["gs://photos/cat.png", "gs://secrets/cat.png", "gs://photos/new/../cat.png", "s3://photos/new/cat.png"]
    answer = ask(client, *others, "gs://photos/new/none.png")
    assert codes(answer) == ["url_not_allowed"] * len(others) + ["fetch_failed"]


def test_token_that_cannot_be_had_is_an_error(client, google):
    google.token_status = 400
    answer = ask(client, "gs://photos/new/cat.png")
    assert codes(answer) == ["fetch_failed"]
    assert "cannot get its credentials" in answer.text
    assert "invalid_grant" not in answer.text
    assert google.paths == []


def test_token_is_sent_to_cloud_storage_alone(identity, google):
    """The host is a constant; no redirect of a bucket is followed: test_s3."""
    bucket = google_storage.GoogleStorage.open()
    request = anyio.run(bucket.request, read_location("gs://photos/a b.png"))
    assert str(request.location) == "https://storage.googleapis.com/photos/a%20b.png"
    assert request.headers["authorization"] == "Bearer token-1"


def test_machine_gives_its_identity(google, tmp_path):
    """By the metadata server, in a process of its own: google-auth reads its address when it is imported."""
    program = (
        "import anyio; from gateway_plugins.urls.locations import read_location;"
        "from gateway_plugins.urls.google_storage import *;"
        "print(anyio.run(GoogleStorage.open().request, read_location('gs://photos/a')).headers['authorization'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOOGLE_", "GCE_"))}
    environment |= {"GCE_METADATA_HOST": google.address, "GCE_METADATA_IP": google.address}
    environment["CLOUDSDK_CONFIG"] = str(tmp_path)
    assert python("-c", program, env=environment).stdout == "Bearer token-1\n"


def test_service_without_credentials_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none"))
    with pytest.raises(BucketsUnavailable, match=r"no credentials of Google Cloud: .*none was not found"):
        create_app(Settings(_env_file=None, fetch_urls=("gs://photos",)))
