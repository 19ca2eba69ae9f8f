"""The sources of images."""

import io
import json
import random
import tarfile
import zipfile

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from gateway.ingest import image_formats
from gateway_client.bulk import BulkError
from gateway_client.bulk.sources import Sources, count
from gateway_client.images import IMAGE_SUFFIXES
from tests.doubles.backend import PNG
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
    assert count([str(photos)]) == 3


def test_named_files_lists_and_folders_are_read_in_their_order(photos):
    """A named file may have any suffix."""
    (photos / "noending").write_bytes(b"x")
    assert read(photos / "noending") == [(str(photos / "noending"), b"x")]
    assert names(read(photos / "b.png", photos)) == ["b.png", "a.JPG", "b.png", "c.webp"]
    (photos / "list.txt").write_text(f"b.png\n\r\n{photos / 'a.JPG'}\r\n")
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


@pytest.mark.parametrize("content", [PNG, b"\xff\xd8\xff\xe0 JPEG", b"PK\3\4 zip"])
def test_binary_stdin_is_refused(tmp_path, monkeypatch, content):
    (tmp_path / "content").write_bytes(content)
    with (tmp_path / "content").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(BulkError, match="a file's content is piped to it"):
            read("-")


def write_table(folder, kind, rows):
    table = folder / f"table.{kind}"
    if kind == "csv":
        table.write_text("\n".join(["id,path", *(f"{number},{row}" for number, row in enumerate(rows))]))
    elif kind == "jsonl":
        table.write_text("".join(json.dumps({"id": 1, "path": row}) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(rows))), "path": rows}), table)
    return table


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_paths_of_a_table_are_relative_to_its_folder_and_a_missing_one_is_an_error(photos, kind):
    table = write_table(photos, kind, ["b.png", "" if kind == "csv" else None, str(photos / "a.JPG")])
    assert count([str(table)]) == 3
    for column in (None, "path"):
        first, second, third = Sources([str(table)], column=column).images()
        assert (first.name, first.read()) == (str(photos / "b.png"), b"b.png")
        assert (third.name, third.read()) == (str(photos / "a.JPG"), b"a.JPG")
        assert second.name == f"{table}:2"
        with pytest.raises(OSError, match="has no path"):
            second.read()


@pytest.mark.parametrize(("encoding", "end"), [("utf-8-sig", "\r"), ("utf-8", "\r\n"), ("utf-16", "\n")])
@pytest.mark.parametrize("name", ["t.csv", "t.txt", "t.jsonl"])
def test_tables_of_other_systems_are_read_or_refused_by_their_encoding(photos, name, encoding, end):
    lines = {"t.csv": ["path", "b.png", "a.JPG"], "t.txt": ["b.png", "a.JPG"]}.get(name, ['"b.png"', '"a.JPG"'])
    (photos / name).write_bytes(end.join([*lines, ""]).encode(encoding))
    if encoding == "utf-16":
        (image,) = Sources([str(photos / name)]).images()
        with pytest.raises(OSError, match="it is UTF-16, not UTF-8 text: save it as UTF-8"):
            image.read()
    else:
        assert names(read(photos / name)) == ["b.png", "a.JPG"]


@pytest.mark.parametrize(
    ("name", "text", "column", "words"),
    [
        ("*.gif", "", None, "there is no file or folder"),
        ("t.csv", "left,right\na.png,b.png\n", None, "name it with --column: left, right"),
        ("t.csv", "left,right\na.png,b.png\n", "middle", "no column 'middle'; its columns are left, right"),
        ("t.csv", "b.png\na.JPG\n", None, "has no header"),
        ("t.csv", "1,s3://bucket/b\n2,a.JPG\n", None, "has no header"),
        ("t.csv", "id;where\n1;b.png\n", None, "Separate columns by commas"),
        ("t.jsonl", '{"other": 1, "more": 2}', None, "name it with --column"),
    ],
)
def test_source_that_cannot_be_read_is_refused(photos, name, text, column, words):
    if text:
        (photos / name).write_text(text)
    with pytest.raises(BulkError, match=words):
        read(photos / name, column=column)


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


def test_bucket_is_read_below_a_prefix_by_a_glob_by_one_name_or_by_a_table(bucket, tmp_path):
    assert read(bucket) == [(f"{bucket}/a.png", b"a.png"), (f"{bucket}/deep/b.jpg", b"deep/b.jpg")]
    assert read(f"{bucket}/notes.txt") == [(f"{bucket}/notes.txt", b"notes.txt")]
    assert names(read(f"{bucket}/**/*.jpg")) == ["b.jpg"]
    table = tmp_path / "t.csv"
    table.write_text(f"url\n{bucket}/a.png\n")
    assert read(table) == [(f"{bucket}/a.png", b"a.png")]


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


def test_image_suffixes_are_those_of_the_gateway():
    """The client imports nothing of the gateway, so it has a copy."""
    assert IMAGE_SUFFIXES == image_formats.SUFFIXES
