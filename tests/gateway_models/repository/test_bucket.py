"""Model repositories in a bucket, with a real S3 server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_models.repository.bucket import (
    WHOLE_BYTES,
    Bucket,
    BucketError,
    Follower,
    fsspec_url,
    working_copy,
)
from gateway_models.repository.follow import Following
from tests.buckets import S3, s3_server

URL = "s3://models/team/production"
STEP = "input {}\n"
ENSEMBLE = "ensemble_scheduling { step { model_name: 'net' } }\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3"), "models") as s3:
        yield s3


@pytest.fixture
def bucket(server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The repository's folder on the server's side, with an ensemble and its step."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    root = server.folder / "models" / "team" / "production"
    put(root, **{"net/config.pbtxt": STEP, "net/1/model.pt": "weights", "flowers/config.pbtxt": ENSEMBLE})
    put(root, **{"flowers/1/.keep": ""})
    yield root
    Bucket(URL).delete(Bucket(URL).listing())


def put(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_changes_of_a_copy_are_written_back(bucket):
    with working_copy(URL) as copy:
        assert files(copy.folder) == files(bucket)
        put(copy.folder, **{"net/2/model.pt": "better", "net/config.pbtxt": STEP + STEP})
        (copy.folder / "net/1/model.pt").unlink()
        (copy.folder / "flowers/2").mkdir()
        put(copy.folder, **{"net/configs/sized.pbtxt": "of this machine"})
        assert copy.publish() == 4
    assert files(bucket) == {
        "flowers/1/.keep": "",
        "flowers/2/.keep": "",
        "flowers/config.pbtxt": ENSEMBLE,
        "net/2/model.pt": "better",
        "net/config.pbtxt": STEP + STEP,
    }


def test_unchanged_copy_writes_nothing(bucket):
    with working_copy(URL) as copy:
        assert copy.publish() == 0


def test_change_of_someone_else_is_not_overwritten(bucket):
    with working_copy(URL) as copy:
        put(copy.folder, **{"net/config.pbtxt": "mine"})
        put(bucket, **{"net/config.pbtxt": "another's"})
        with pytest.raises(BucketError, match="changed by someone else"):
            copy.publish()
    assert (bucket / "net/config.pbtxt").read_text() == "another's"


@pytest.mark.parametrize("nbytes", [WHOLE_BYTES, WHOLE_BYTES + 1])
def test_large_files_stay_in_the_bucket(bucket, nbytes):
    put(bucket, **{"net/1/model.pt": "x" * nbytes})
    with working_copy(URL) as copy:
        weights = copy.folder / "net/1/model.pt"
        assert weights.stat().st_size == nbytes
        assert (weights.read_bytes()[:1] == b"x") == (nbytes <= WHOLE_BYTES)
        assert copy.publish() == 0
    assert (bucket / "net/1/model.pt").read_text() == "x" * nbytes


def test_follower_copies_changes_and_names_their_models(bucket, tmp_path):
    folder = tmp_path / "repository"
    follower = Follower(Bucket(URL), folder)
    assert follower.update() == {"net", "flowers"}
    assert files(folder) == files(bucket)
    assert follower.update() == set()
    put(bucket, **{"net/2/model.pt": "better", "flowers/2/.keep": ""})
    (bucket / "flowers/1/.keep").unlink()
    assert Follower(Bucket(URL), folder).update() == {"net", "flowers"}, "another process goes on"
    assert files(folder) == files(bucket)
    assert not (folder / "flowers/1").exists(), "an empty folder would be a version"


def test_model_that_is_removed_disappears(bucket, tmp_path):
    folder = tmp_path / "repository"
    follower = Follower(Bucket(URL), folder)
    follower.update()
    put(folder, **{"flowers/configs/sized.pbtxt": "of this machine"})
    Bucket(URL).delete([path for path in Bucket(URL).listing() if path.startswith("flowers/")])
    assert follower.update() == {"flowers"}
    assert sorted(path.name for path in folder.iterdir()) == ["net"]


def test_empty_bucket_deletes_nothing(bucket, tmp_path):
    """A wrong path or a lost listing must not stop a service."""
    folder = tmp_path / "repository"
    follower = Follower(Bucket(URL), folder)
    follower.update()
    before = files(folder)
    Bucket(URL).delete(Bucket(URL).listing())
    with pytest.raises(BucketError, match="holds no model repository"):
        follower.update()
    assert files(folder) == before


class RecordingTriton:
    """Records what is loaded; the first `failures` loads fail."""

    def __init__(self, failures: int = 0) -> None:
        self.loaded: list[set[str]] = []
        self._failures = failures

    def load(self, models, say) -> set[str]:
        self.loaded.append(set(models))
        self._failures -= 1
        return set(models) if self._failures >= 0 else set()


def test_failed_load_is_tried_again(bucket, tmp_path):
    follower = Follower(Bucket(URL), tmp_path / "repository")
    follower.update()
    put(bucket, **{"net/2/model.pt": "better"})
    triton = RecordingTriton(failures=1)
    following = Following(follower, triton, print, settle_seconds=0)
    for _ in range(3):
        following.update()
    assert triton.loaded == [{"net"}, {"net"}]


def test_unreachable_bucket_is_reported_and_changes_nothing(bucket, tmp_path, monkeypatch):
    follower = Follower(Bucket(URL), tmp_path / "repository")
    follower.update()
    before, said = files(tmp_path / "repository"), []
    with monkeypatch.context() as changed:
        changed.setenv("AWS_SECRET_ACCESS_KEY", "another")
        Following(Follower(Bucket(URL), tmp_path / "repository"), None, said.append, settle_seconds=0).update()
    assert files(tmp_path / "repository") == before
    assert said[0].startswith(f"{URL} cannot be used")


def test_urls_are_those_of_triton():
    assert fsspec_url("s3://bucket/models") == ("s3://bucket/models", {})
    assert fsspec_url("gs://bucket/models") == ("gs://bucket/models", {})
    assert fsspec_url("as://account/container/models") == ("abfs://container/models", {"account_name": "account"})
    for url in ("ftp://bucket/models", "s3://", "https://bucket/models"):
        with pytest.raises(BucketError, match="is no model repository"):
            Bucket(url)


def test_state_of_a_follower_is_outside_of_the_repository(bucket, tmp_path):
    Follower(Bucket(URL), tmp_path / "repository").update()
    state = json.loads((tmp_path / ".repository.pulled.json").read_text())
    assert state.keys() == files(bucket).keys()
