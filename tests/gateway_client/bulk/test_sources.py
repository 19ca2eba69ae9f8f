"""The sources of images."""

import io
import random
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path

import fsspec
import pytest
from PIL import Image

from gateway.ingest.image_formats import FORMATS
from gateway_client.bulk import BulkError
from gateway_client.bulk.sources import Sources
from gateway_client.images import IMAGE_SUFFIXES
from tests.gateway_client.bulk.running import outcomes


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for name in (
        "b.png",
        "a.JPG",
        "deep/er/c.webp",
        ".hidden/d.png",
        "notes.txt",
        "deep/.e.png",
        "__MACOSX/._b.png",
        "._a.JPG",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


def read(*sources, **options) -> list[tuple[str, bytes]]:
    return [(image.name, image.read()) for image in Sources(map(str, sources), **options).images()]


def names(found: list[tuple[str, bytes]]) -> list[str]:
    return [name.rpartition("/")[2] for name, _ in found]


def test_folder_is_read_recursively_without_hidden_files(photos):
    found = read(photos)
    assert found == [(str(photos / name), name.encode()) for name in ("a.JPG", "b.png", "deep/er/c.webp")]


def test_deep_folders_are_read(tmp_path):
    """Beyond Python's limit of recursion."""
    folders = [Path(f"{tmp_path}{'/d' * depth}") for depth in range(1, 1_201)]
    for folder in folders:
        folder.mkdir()
    (folders[-1] / "a.png").touch()
    try:
        assert read(tmp_path) == [(f"{folders[-1]}/a.png", b"")]
    finally:
        (folders[-1] / "a.png").unlink()
        for folder in reversed(folders):
            folder.rmdir()


def test_named_files_lists_and_folders_are_read_in_their_order(photos):
    """A named file may have any suffix."""
    (photos / "noending").write_bytes(b"x")
    assert read(photos / "noending") == [(str(photos / "noending"), b"x")]
    assert names(read(photos / "b.png", photos)) == ["b.png", "a.JPG", "b.png", "c.webp"]
    for separator in ("\r\n", "\0"):
        (photos / "list.txt").write_bytes(f"\ufeffb.png{separator}{separator}{photos / 'a.JPG'}{separator}".encode())
        assert names(read(photos / "list.txt")) == ["b.png", "a.JPG"]


def test_skipped_files_are_counted(photos, tmp_path):
    folder = Sources([str(photos)])
    list(folder.images())
    assert (folder.skipped.number, folder.skipped.example) == (1, "notes.txt")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("folder/", b"")
        file.writestr("folder/notes.txt", b"text")
    archive = Sources([str(tmp_path / "a.zip")])
    list(archive.images())
    assert archive.skipped.number == 1


def test_missing_source_is_refused(photos):
    with pytest.raises(BulkError, match="there is no file or folder"):
        read(photos / "*.gif")


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "zip"])
def test_archive_members_are_read_in_place_without_hidden_ones(photos, tmp_path, ending):
    archive = tmp_path / f"photos.{ending}"
    if ending == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            for path in sorted(photos.rglob("*")):
                file.write(path, path.relative_to(photos))
    else:
        with tarfile.open(archive, "w:gz" if "gz" in ending else "w") as file:
            file.add(photos, ".")
    found = read(archive)
    assert sorted(data for _, data in found) == [b"a.JPG", b"b.png", b"deep/er/c.webp"]
    assert {name.startswith(f"{archive}/") for name, _ in found} == {True}


def tar_of(path, names, *, kind="") -> bytes:
    """A tar's bytes; each member has 40,000 bytes that do not compress."""
    with tarfile.open(path, f"w:{kind}") as file:
        for number, name in enumerate(names):
            member = tarfile.TarInfo(name)
            member.size = 40_000
            file.addfile(member, io.BytesIO(random.Random(number).randbytes(member.size)))
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["", "gz", "xz"])
def test_truncated_tar_affects_no_other_source(photos, tmp_path, kind):
    archive = tmp_path / "a.tar"
    whole = tar_of(archive, ["1.png", "2.png", "3.png", "4.png"], kind=kind)
    archive.write_bytes(whole[: len(whole) * 6 // 10])
    found = outcomes(archive, photos / "b.png")
    (error,) = [reason for reason in found.values() if isinstance(reason, str)]
    assert "the archive is damaged, or cannot be read from here on" in error
    assert found["b.png"] == b"b.png"
    assert "4.png" not in found


@pytest.fixture
def bucket(tmp_path):
    files = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}"
    for name in ("a.png", "deep/b.jpg", "deep/._b.jpg", "notes.txt"):
        files.pipe(f"{root}/{name}", name.encode())
    yield f"memory:/{root}"
    files.rm(root, recursive=True)


def test_bucket_is_read_below_a_prefix_by_a_glob_by_one_name_and_in_a_list(bucket, tmp_path):
    assert read(bucket) == [(f"{bucket}/a.png", b"a.png"), (f"{bucket}/deep/b.jpg", b"deep/b.jpg")]
    assert read(f"{bucket}/notes.txt") == [(f"{bucket}/notes.txt", b"notes.txt")]
    assert names(read(f"{bucket}/**/*.jpg")) == ["b.jpg"]
    paths = tmp_path / "t.txt"
    paths.write_text(f"{bucket}/a.png\n")
    assert read(paths) == [(f"{bucket}/a.png", b"a.png")]


def test_bucket_errors_are_reported(bucket, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("Unable to locate credentials")

    for source, words in ((f"{bucket}/none", "contains no images"), ("dropbox://photos", "pip install")):
        with pytest.raises(BulkError, match=words):
            read(source)
    (gone,) = Sources([f"{bucket}/a.png"]).images()
    with monkeypatch.context() as patch:
        patch.setattr(type(fsspec.filesystem("memory")), "isfile", refuse)
        with pytest.raises(BulkError, match="cannot be listed: Unable to locate credentials"):
            read(bucket)
    fsspec.filesystem("memory").rm(f"{bucket.removeprefix('memory:/')}/a.png")
    with pytest.raises(OSError, match="there is no such object"):
        gone.read()


def test_each_format_of_the_gateway_has_a_suffix():
    """By Pillow's table; the client imports nothing of the gateway."""
    for traits in FORMATS.values():
        import_module(traits.plugin)
    known = Image.registered_extensions()
    assert {traits.pillow for traits in FORMATS.values()} <= {known.get(suffix) for suffix in IMAGE_SUFFIXES}
