"""Model repositories in a bucket, with a real S3 server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_models.repository import follow
from gateway_models.repository.bucket import WHOLE_BYTES, BucketError, RepositoryBucket, fsspec_url, working_copy
from gateway_models.repository.follow import Follower
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
    RepositoryBucket(URL).delete(RepositoryBucket(URL).objects())


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
        assert copy.publish() == 0
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


def updates(monkeypatch, follower: Follower, times: int, *calls) -> None:
    pauses = iter(range(times))
    monkeypatch.setattr("time.sleep", lambda _: next(pauses))
    with pytest.raises((StopIteration, RuntimeError)):
        follow.follow(follower, 1.0, *calls)


def test_follower_copies_changes_and_names_their_models(bucket, tmp_path):
    folder = tmp_path / "repository"
    follower = Follower(RepositoryBucket(URL), folder)
    assert follower.update() == {"net", "flowers"}
    assert files(folder) == files(bucket)
    assert json.loads((tmp_path / ".repository.pulled.json").read_text()).keys() == files(bucket).keys()
    assert follower.update() == set()
    put(bucket, **{"net/2/model.pt": "better", "flowers/2/.keep": ""})
    (bucket / "flowers/1/.keep").unlink()
    assert Follower(RepositoryBucket(URL), folder).update() == {"net", "flowers"}, "another process goes on"
    assert files(folder) == files(bucket)
    assert not (folder / "flowers/1").exists(), "an empty folder would be a version"


def test_removed_model_disappears_and_a_lost_bucket_changes_nothing(bucket, tmp_path, monkeypatch):
    """A wrong path, key or listing must not stop a service."""
    folder = tmp_path / "repository"
    follower = Follower(RepositoryBucket(URL), folder)
    follower.update()
    put(folder, **{"flowers/configs/sized.pbtxt": "of this machine"})
    RepositoryBucket(URL).delete([path for path in RepositoryBucket(URL).objects() if path.startswith("flowers/")])
    assert follower.update() == {"flowers"}
    assert sorted(path.name for path in folder.iterdir()) == ["net"]
    before, said = files(folder), []
    with monkeypatch.context() as changed:
        changed.setenv("AWS_SECRET_ACCESS_KEY", "another")
        updates(monkeypatch, Follower(RepositoryBucket(URL), folder), 1, said.append, lambda _: set())
    assert said[0].startswith(f"{URL} cannot be used")
    RepositoryBucket(URL).delete(RepositoryBucket(URL).objects())
    with pytest.raises(BucketError, match="holds no model repository"):
        follower.update()
    assert files(folder) == before


def test_failed_load_is_tried_again(bucket, tmp_path, monkeypatch):
    follower = Follower(RepositoryBucket(URL), tmp_path / "repository")
    follower.update()
    put(bucket, **{"net/2/model.pt": "better"})
    loaded: list[set[str]] = []

    def load(models: set[str]) -> set[str]:
        """The first load fails."""
        loaded.append(set(models))
        return set() if len(loaded) > 1 else loaded[-1]

    updates(monkeypatch, follower, 3, print, load)
    assert loaded == [{"net"}, {"net"}]


def test_urls_are_those_of_triton():
    assert fsspec_url("s3://bucket/models") == ("s3://bucket/models", {})
    assert fsspec_url("gs://bucket/models") == ("gs://bucket/models", {})
    assert fsspec_url("as://account/container/models") == ("abfs://container/models", {"account_name": "account"})
    for url in ("ftp://bucket/models", "s3://", "https://bucket/models"):
        with pytest.raises(BucketError, match="is no model repository"):
            RepositoryBucket(url)


class ForeignStore:
    """A file system of fsspec whose objects have any name and size: a real S3 server over a folder can hold none."""

    def __init__(self, objects: dict[str, bytes], sizes: dict[str, int] | None = None) -> None:
        self.objects, self.sizes = objects, sizes or {}

    def find(self, root: str, *, detail: bool) -> dict[str, dict[str, object]]:
        assert detail
        return {
            name: {"type": "file", "size": self.sizes.get(name, len(data)), "ETag": f"{name}{len(data)}"}
            for name, data in self.objects.items()
            if name.startswith(f"{root}/")
        }

    def get_file(self, name: str, target: str) -> None:
        if name not in self.objects:
            raise FileNotFoundError(name)
        Path(target).write_bytes(self.objects[name])


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> ForeignStore:
    """A bucket with one model; tests add objects."""
    import fsspec

    root = URL.removeprefix("s3://")
    store = ForeignStore({f"{root}/net/config.pbtxt": b"input {}", f"{root}/net/1/model.pt": b"weights"})
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *_, **__: (store, root))
    return store


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


OUTSIDE = ["../written", "net/../../written", "net/1/../../../written", "{tmp}/written", "/written", "net//written"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("nbytes", [4, WHOLE_BYTES + 1])
def test_object_names_write_nothing_outside(foreign, tmp_path, name, nbytes):
    """Object stores allow any text as a name."""
    name = f"models/team/production/{name.format(tmp=tmp_path)}"
    foreign.objects[name] = b"evil"
    foreign.sizes[name] = nbytes
    with pytest.raises(BucketError, match="cannot be a file of it"), working_copy(URL):
        pass
    folder = tmp_path / "models" / "repository"
    with pytest.raises(BucketError, match="cannot be a file of it"):
        Follower(RepositoryBucket(URL), folder).update()
    assert not any("written" in path for path in tree(tmp_path))
    del foreign.objects[name]
    assert Follower(RepositoryBucket(URL), folder).update() == {"net"}


@pytest.mark.parametrize("name", ["../kept", "{tmp}/kept", "net/../../kept"])
def test_names_in_the_state_delete_nothing_outside(foreign, tmp_path, name):
    follower = Follower(RepositoryBucket(URL), tmp_path / "repository")
    follower.update()
    (tmp_path / "kept").touch()
    state = tmp_path / ".repository.pulled.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {name.format(tmp=tmp_path): "a"}))
    with pytest.raises(BucketError, match=r"pulled\.json cannot be read"):
        follower.update()
    assert (tmp_path / "kept").exists()


def test_change_while_it_is_copied_is_copied_too(foreign, tmp_path, monkeypatch):
    """The folder never has a configuration without the version that it names."""
    root, folder = URL.removeprefix("s3://"), tmp_path / "repository"
    download = foreign.get_file

    def get_file(name: str, target: str) -> None:
        download(name, target)
        foreign.objects.setdefault(f"{root}/net/2/model.pt", b"better")
        assert not folder.exists() or tree(folder) >= {"net/2/model.pt"}

    monkeypatch.setattr(foreign, "get_file", get_file)
    assert Follower(RepositoryBucket(URL), folder).update() == {"net"}
    assert tree(folder) >= {"net/config.pbtxt", "net/1/model.pt", "net/2/model.pt"}


def test_links_in_the_folder_are_not_followed_out_of_it(foreign, tmp_path):
    folder, outside = tmp_path / "repository", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "net").symlink_to(outside)
    with pytest.raises(ValueError, match="leads out of"):
        Follower(RepositoryBucket(URL), folder).update()
    assert not tree(outside)
