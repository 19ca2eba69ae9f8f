"""Images in S3, read with the service's credentials from a real server."""

import pytest

from gateway.app import create_app
from gateway_plugins.urls.buckets import BucketsUnavailable
from tests.buckets import s3_server
from tests.doubles.backend import PNG
from tests.doubles.origin import origin_on, redirect, response
from tests.plugins.urls.test_fetcher import ask, codes
from tests.services import client_of
from tests.settings import Settings

NAMES = ("cat.png", "a b+c%20.png", "a?b#c.png", "%00.png", "Größe.png", "(1).png")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3"), "photos", "secrets") as server:
        folder = server.folder / "photos" / "new"
        folder.mkdir()
        for name in NAMES:
            (folder / name).write_bytes(PNG)
        (server.folder / "photos" / "cat.png").write_bytes(PNG)
        (server.folder / "secrets" / "cat.png").write_bytes(PNG)
        yield server


@pytest.fixture(scope="module")
def identity(server):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def client(identity):
    """One for all tests: botocore reads its descriptions of services for each client."""
    with client_of(fetch_urls=("s3://photos/new",)) as client:
        yield client


@pytest.mark.parametrize("name", NAMES)
def test_object_is_classified(client, name):
    answer = ask(client, f"s3://photos/new/{name}")
    assert codes(answer) == [None]
    assert answer.json()["results"][0]["filename"] == name


def test_other_objects_are_errors(client):
    others = ["s3://photos/cat.png", "s3://secrets/cat.png", "s3://photos/new/../cat.png"]
    answer = ask(client, *others, "s3://photos/new/none.png")
    assert codes(answer) == ["url_not_allowed"] * len(others) + ["fetch_failed"]


def test_server_of_the_bucket_cannot_be_named_by_a_client(client, server):
    """Its address is not public; only the service's own requests may use it."""
    assert codes(ask(client, f"{server.url}/photos/new/cat.png")) == ["url_not_allowed"]


def test_wrong_credentials_are_an_error(server, identity, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with client_of(fetch_urls=("s3://photos",)) as client:
        assert codes(ask(client, "s3://photos/new/cat.png")) == ["fetch_failed"]


def test_credentials_are_never_sent_after_a_redirect(identity, monkeypatch):
    with origin_on() as bucket, origin_on() as other:
        bucket.answers["/photos/cat.png"] = redirect(other.url())
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url(""))
        with client_of(fetch_urls=("s3://photos", other.url("/")), fetch_networks=("127.0.0.0/8",)) as client:
            assert codes(ask(client, "s3://photos/cat.png")) == ["fetch_failed"]
            bucket.answers["/photos/cat.png"] = response()
            assert codes(ask(client, "s3://photos/cat.png")) == [None]
        assert b"authorization" in bucket.heads[0].lower()
        assert other.heads == []


def test_service_without_credentials_does_not_start(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(BucketsUnavailable, match="no credentials of AWS"):
        create_app(Settings(_env_file=None, fetch_urls=("s3://photos",)))
