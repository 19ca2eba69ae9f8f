"""Files from URLs: only those with the checksum that was said, and only once."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import fsspec
import httpx
import pytest

from gateway.errors import UserError
from gateway_models.networks import download
from gateway_models.networks.add import add, fetched
from gateway_models.networks.download import DownloadError, fetch
from gateway_models.repository.spec import ModelSpec

MODEL = b"a model " * 1000
SHA256 = hashlib.sha256(MODEL).hexdigest()
URL = "https://models.example/flowers/model.pt2"


@pytest.fixture
def requested(monkeypatch) -> list[str]:
    """What an https server that is played here was requested for."""
    requested: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requested.append(request.url.path)
        if request.url.path.startswith("/moved"):
            return httpx.Response(302, headers={"location": URL})
        if request.url.path.startswith("/downgraded"):
            return httpx.Response(302, headers={"location": URL.replace("https:", "http:")})
        if request.url.path.startswith("/gone"):
            return httpx.Response(404)
        if request.url.path.startswith("/broken"):
            raise httpx.ReadError("connection reset")
        return httpx.Response(200, content=MODEL)

    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: client(transport=httpx.MockTransport(answer), **options))
    return requested


@pytest.fixture
def bucket(monkeypatch) -> Iterator[str]:
    """A bucket in memory, under the name of S3's protocol."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket-of-test-download/model.onnx", MODEL)
    real = fsspec.core.url_to_fs
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: real(url.replace("s3://", "memory://")))
    yield "s3://bucket-of-test-download/model.onnx"
    memory.rm("/bucket-of-test-download", recursive=True)


def test_file_is_fetched_once_under_its_checksum(requested, tmp_path):
    """And again where the copy is damaged."""
    path = fetch(URL, SHA256.upper(), print, cache=tmp_path)
    assert path == tmp_path / SHA256 / "model.pt2"
    assert path.read_bytes() == MODEL
    assert fetch(URL, SHA256, print, cache=tmp_path) == path
    assert requested == ["/flowers/model.pt2"]
    path.write_bytes(b"damaged")
    assert fetch(URL, SHA256, print, cache=tmp_path).read_bytes() == MODEL
    assert len(requested) == 2


def test_redirects_are_followed_and_buckets_read(requested, bucket, tmp_path):
    assert fetch("https://models.example/moved/model.pt2", SHA256, print, cache=tmp_path).read_bytes() == MODEL
    assert fetch(bucket, SHA256, print, cache=tmp_path).name == "model.onnx"


@pytest.mark.parametrize(
    ("url", "sha256", "reason"),
    [
        (URL, None, "may change: add --sha256"),
        (URL, "abc", "'abc' is not a SHA-256"),
        (URL, "0" * 64, f"has the SHA-256 {SHA256}, but --sha256 expects 000"),
        ("http://models.example/model.pt", SHA256, "http:// is not supported: use https, s3"),
        ("https://models.example/downgraded.pt", SHA256, "only https is allowed"),
        ("https://models.example/gone.pt", SHA256, r"gone\.pt answers 404 Not Found"),
        ("https://models.example/broken.pt", SHA256, r"broken\.pt cannot be fetched: connection reset"),
    ],
)
def test_failed_or_unverified_download_is_not_kept(requested, tmp_path, url, sha256, reason):
    with pytest.raises(DownloadError, match=reason):
        fetch(url, sha256, print, cache=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_missing_and_oversized_objects_are_reported(bucket, tmp_path, monkeypatch):
    with pytest.raises(DownloadError, match="cannot be fetched"):
        fetch(bucket.replace("model", "other"), SHA256, print, cache=tmp_path)
    monkeypatch.setattr(download, "MAX_BYTES", 100)
    with pytest.raises(DownloadError, match="is larger than 0 GiB"):
        fetch(bucket, SHA256, print, cache=tmp_path)


def test_source_or_weights_may_be_a_url(requested, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "default_cache_dir", lambda: tmp_path)
    labels = tmp_path / "labels.txt"
    with pytest.raises(UserError, match=rf"{SHA256}/model\.pt2 is no model"):
        add(ModelSpec(URL, "flowers", labels, sha256=SHA256), tmp_path / "models", print)
    request = fetched(ModelSpec("timm:test_vit", "flowers", labels, weights=URL, sha256=SHA256), print)
    assert request.weights == str(tmp_path / "sources" / SHA256 / "model.pt2")
    with pytest.raises(UserError, match="--sha256 is for a SOURCE or --weights from https:// or a bucket"):
        add(ModelSpec(str(Path(__file__)), "flowers", labels, sha256=SHA256), tmp_path / "models", print)
