"""Files from URLs: only those with the checksum that was said, and only once."""

import hashlib
import io
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError

import fsspec
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

    def answer(url: str, **_: object) -> io.BytesIO:
        requested.append(url.removeprefix("https://models.example"))
        if "gone" in url:
            raise HTTPError(url, 404, "Not Found", Message(), None)
        if "broken" in url:
            raise OSError("connection reset")
        return io.BytesIO(MODEL)

    monkeypatch.setattr(download, "urlopen", answer)
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


@pytest.mark.parametrize(
    ("url", "sha256", "reason"),
    [
        (URL, None, "may change: add --sha256"),
        (URL, "abc", "'abc' is not a SHA-256"),
        (URL, "0" * 64, f"has the SHA-256 {SHA256}, but --sha256 expects 000"),
        ("http://models.example/model.pt", SHA256, "http:// is not supported: use https, s3"),
        ("https://models.example/gone.pt", SHA256, r"gone\.pt cannot be fetched: HTTP Error 404: Not Found"),
        ("https://models.example/broken.pt", SHA256, r"broken\.pt cannot be fetched: connection reset"),
    ],
)
def test_failed_or_unverified_download_is_not_kept(requested, tmp_path, url, sha256, reason):
    with pytest.raises(DownloadError, match=reason):
        fetch(url, sha256, print, cache=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_objects_of_a_bucket_are_read_or_reported(bucket, tmp_path):
    assert fetch(bucket, SHA256, print, cache=tmp_path).name == "model.onnx"
    with pytest.raises(DownloadError, match="cannot be fetched"):
        fetch(bucket.replace("model", "other"), SHA256, print, cache=tmp_path)


def test_source_or_weights_may_be_a_url(requested, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "default_cache_dir", lambda: tmp_path)
    labels = tmp_path / "labels.txt"
    with pytest.raises(UserError, match=rf"{SHA256}/model\.pt2 is no model"):
        add(ModelSpec(URL, "flowers", labels, sha256=SHA256), tmp_path / "models", print)
    request = fetched(ModelSpec("timm:test_vit", "flowers", labels, weights=URL, sha256=SHA256), print)
    assert request.weights == str(tmp_path / "sources" / SHA256 / "model.pt2")
    with pytest.raises(UserError, match="--sha256 is for a SOURCE or --weights from https:// or a bucket"):
        add(ModelSpec(str(Path(__file__)), "flowers", labels, sha256=SHA256), tmp_path / "models", print)
