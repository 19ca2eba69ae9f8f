"""Layers become the files of an image, and a hostile layer writes nothing else."""

import gzip
import tarfile
import tempfile
from pathlib import Path

import pytest

from gateway_local.runtime.image import tree as image_tree
from gateway_local.runtime.image.errors import ImageError
from gateway_local.runtime.image.tree import (
    MAX_DEPTH,
    MAX_HEADER_BYTES,
    MAX_LINKS,
    MAX_PATH_LENGTH,
    File,
    ImageTree,
)
from tests.triton_images import file, layer, link, special


def tree_of(tmp_path: Path, *layers: bytes, wanted=lambda parts: True) -> ImageTree:
    """The tree of some layers, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    (folder / "contents").mkdir()
    tree = ImageTree(folder / "contents", wanted)
    for number, content in enumerate(layers):
        path = folder / f"layer-{number}"
        path.write_bytes(content)
        tree.add(path)
    return tree


def text(tree: ImageTree, path: str) -> str | None:
    found = tree.find(path)
    return tree.content(found).read_text() if isinstance(found, File) else None


def names(tree: ImageTree) -> list[str]:
    return ["/".join(parts) for parts, _ in tree.walk()]


@pytest.mark.parametrize("compression", ["gzip", "zstd", ""])
def test_layer_may_be_compressed_or_not(tmp_path, compression):
    assert text(tree_of(tmp_path, layer(file("etc/a", b"1"), compression=compression)), "/etc/a") == "1"


LAYERS = {
    "file": ([file("a/x", b"1"), file("a/y", b"1")], [file("a/x", b"2")], {"a/x": "2", "a/y": "1"}),
    "file for a folder": ([file("a/x", b"1")], [file("a", b"2")], {"a": "2"}),
    "folder for a file": ([file("b", b"1")], [special("b"), file("b/y", b"2")], {"b/y": "2"}),
    "whiteout": ([file("a/x"), file("a/y"), file("b/x")], [file("a/.wh.x"), file(".wh.b")], {"a/y": ""}),
    "whiteout beside its file": ([file("a/x", b"old")], [file("a/.wh.x"), file("a/x", b"new")], {"a/x": "new"}),
    "opaque folder": (
        [file("a/old"), file("a/b/old"), file("c")],
        [file("a/.wh..wh..opq"), file("a/b/new")],
        {"a/b/new": "", "c": ""},
    ),
    "other file of a union file system": ([file(".wh..wh.aufs"), file("a")], [], {"a": ""}),
    "hard link": ([file("a", b"1"), link("b", "a", hard=True)], [file("a", b"2")], {"a": "2", "b": "1"}),
    "behind a link": ([special("usr/lib"), link("lib", "usr/lib")], [file("lib/a", b"1")], {"usr/lib/a": "1"}),
    "devices": ([special("x", tarfile.CHRTYPE), special("y", tarfile.BLKTYPE), file("a")], [], {"a": ""}),
    "pipe": ([special("x", tarfile.FIFOTYPE), file("a")], [], {"a": ""}),
}
"""A layer, one above it, and the files of both."""


@pytest.mark.parametrize("step", [1, -1], ids=["", "in another order"])
@pytest.mark.parametrize(("lower", "upper", "files"), LAYERS.values(), ids=LAYERS)
def test_upper_layer_changes_the_lower_one(tmp_path, lower, upper, files, step):
    """In whatever order its members are, unless a folder must come first."""
    members = upper if upper and upper[0][0].isdir() else upper[::step]
    tree = tree_of(tmp_path, layer(*lower), layer(*members))
    assert {name: text(tree, name) for name in names(tree)} == files


def test_content_under_an_unwanted_name_is_fetched(tmp_path):
    """The first name of a hard link has the content, and may be one that is not wanted."""
    content = layer(file("skipped", b"1"), file("other", b"2"), link("lib.so", "skipped", hard=True))
    tree = tree_of(tmp_path, content, wanted=lambda parts: parts[-1].endswith(".so"))
    found = tree.find("lib.so")
    with pytest.raises(KeyError):
        tree.content(found)
    tree.fetch([found])
    assert text(tree, "lib.so") == "1"
    assert len(list(tmp_path.glob("*/contents/*"))) == 1


@pytest.mark.parametrize("path", ["lib/a.so", "up", "absolute"])
def test_symbolic_links_lead_within_the_image(tmp_path, path):
    links = {
        "lib": "usr/lib",
        "usr/lib/a.so": "a.so.1",
        "up": "../../../../usr/lib/a.so.1",
        "absolute": "/lib/a.so",
    }
    members = [link(name, target) for name, target in links.items()]
    assert text(tree_of(tmp_path, layer(file("usr/lib/a.so.1", b"1"), *members)), path) == "1"


@pytest.mark.parametrize("target", ["nowhere", "loop", "/", "../.."])
def test_links_to_no_file_are_left_out(tmp_path, target):
    tree = tree_of(tmp_path, layer(link("loop", target), file("a")))
    assert names(tree) == ["a"]
    assert not isinstance(tree.find("loop"), File)


def header_of(kind: bytes) -> bytes:
    """A layer whose header is that of a member of 1 MiB, which `tarfile` would read into memory."""
    header = tarfile.TarInfo("header")
    header.type, header.size = kind, 2**20
    return gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + b"0" * header.size, compresslevel=1)


def sparse() -> bytes:
    """A layer with a sparse file: a few bytes of one may be terabytes on the disk."""
    header = bytearray(tarfile.TarInfo("sparse").tobuf(tarfile.GNU_FORMAT))
    header[156:157], header[483:495] = tarfile.GNUTYPE_SPARSE, b"77777777777\0"
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + bytes(1024)


def damaged(compression: str) -> bytes:
    content = layer(file("a", bytes(range(256)) * 100), compression=compression)
    return content[: len(content) // 3]


HEADERS = f"headers of more than {MAX_HEADER_BYTES // 2**10} KiB"
REFUSED = [
    *((layer(file(name, b"1")), "leads out of it") for name in ("../x", "a/../../x", "/../x", "./..")),
    *(
        (layer(link("a", target, hard=True), file("later")), "which is no file of it")
        for target in ("/etc/passwd", "../../etc/passwd", "later")
    ),
    *((damaged(compression), "damaged") for compression in ("gzip", "zstd", "")),
    *((content, "damaged") for content in (b"", b"x" * 2000, gzip.compress(b"x" * 2000))),
    *((header_of(kind), HEADERS) for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE)),
    (sparse(), "sparse file 'sparse'"),
]
"""Layers that are hostile or damaged, and the words of the error."""


@pytest.mark.parametrize(("content", "words"), REFUSED, ids=[f"{at}: {row[1]}" for at, row in enumerate(REFUSED)])
def test_hostile_layer_is_refused(tmp_path, content, words):
    with pytest.raises(ImageError, match=words):
        tree_of(tmp_path, content)
    assert not list(tmp_path.rglob("x"))


def test_paths_and_links_of_this_machine_are_those_of_the_image(tmp_path):
    tree = tree_of(tmp_path, layer(file("/etc/triton-image-test", b"1")))
    assert text(tree, "etc/triton-image-test") == "1"
    assert not Path("/etc/triton-image-test").exists()
    outside = tmp_path / "outside"
    outside.mkdir()
    tree = tree_of(tmp_path, layer(link("a", str(outside)), file("a/escaped", b"1")))
    assert not list(outside.iterdir())
    assert text(tree, "a/escaped") == "1"


def path_of(length: int) -> str:
    """A path of this many characters, in parts that a file system takes."""
    return (("a" * 63 + "/") * (length // 64)).ljust(length, "b")


HUNDRED, OPAQUE = [file(f"d/{number}") for number in range(100)], file("d/.wh..wh..opq")
TOO_LONG = f"more than {MAX_PATH_LENGTH} characters"


LIMITS = {
    "depth": ({}, [file("d/" * MAX_DEPTH + "a")], 1, [file("d/" * (MAX_DEPTH + 1) + "a")], str(MAX_DEPTH)),
    "name": ({}, [file(path_of(MAX_PATH_LENGTH))], 1, [file(path_of(MAX_PATH_LENGTH + 1))], TOO_LONG),
    "target": ({}, [link("a", path_of(MAX_PATH_LENGTH))], 0, [link("a", path_of(MAX_PATH_LENGTH + 1))], TOO_LONG),
    "files": ({"MAX_FILES": 3}, [file(n) for n in "abc"], 3, [file(n) for n in "abcd"], "more than 3 files"),
    # Each path may name 127 folders: without the count, a layer of 8 MB took gigabytes of memory.
    "folders of paths": ({"MAX_FILES": 4}, [file("a/b/c/d")], 1, [file("a/b/c/d/e")], "more than 4 files"),
    "text of names and links": (
        {"MAX_TEXT": 10},
        [file("ab/cd"), link("ef", "ab/c")],
        1,
        [file("ab/cd"), link("ef", "ab/cd")],
        "more than 10 characters",
    ),
    # An opaque whiteout looks at each file of its folder, also at those of its own layer, which stay.
    "hiding again and again": (
        {"MAX_STEPS": 10_000},
        [*HUNDRED, OPAQUE],
        100,
        [*HUNDRED, *[OPAQUE] * 100],
        "take too long to follow",
    ),
}
"""Lowered limits; a layer that keeps to them, and its files; one that does not, and the error."""


@pytest.mark.parametrize("name", LIMITS)
def test_layer_up_to_its_limits_is_read(tmp_path, monkeypatch, name):
    limits, fits, count, exceeds, reason = LIMITS[name]
    for limit, value in limits.items():
        monkeypatch.setattr(image_tree, limit, value)
    assert len(names(tree_of(tmp_path, layer(*fits)))) == count
    with pytest.raises(ImageError, match=reason):
        tree_of(tmp_path, layer(*exceeds))


def test_layers_unpack_up_to_a_limit(tmp_path, monkeypatch):
    """A few kilobytes of gzip may be gigabytes; what is not wanted counts as well."""
    member = file("a", bytes(2**20))
    size = len(layer(member, compression=""))
    monkeypatch.setattr(image_tree, "MAX_UNPACKED_BYTES", size)
    assert names(tree_of(tmp_path, layer(member), wanted=lambda parts: False)) == ["a"]
    monkeypatch.setattr(image_tree, "MAX_UNPACKED_BYTES", size - 1)
    with pytest.raises(ImageError, match="more than 0 GiB"):
        tree_of(tmp_path, layer(member), wanted=lambda parts: False)


def test_following_links_is_limited(tmp_path, monkeypatch):
    """Nine links of 1,001 parts each: without the limit, half a million members below them took hours."""
    target = "./" * 1000 + "d"
    chain = [file("d/a"), link("0", target)]
    chain += [link(str(number), f"{target}/../{number - 1}") for number in range(1, 9)]
    monkeypatch.setattr(image_tree, "MAX_STEPS", 9 * 1010)
    assert tree_of(tmp_path, layer(*chain, file("d/x"), file("d/y"))).find("d/y")
    with pytest.raises(ImageError, match="take too long to follow"):
        tree_of(tmp_path, layer(*chain, file("8/x"), file("8/y")))


def test_member_may_have_large_headers(tmp_path):
    member, content = file("a", b"1")
    member.pax_headers = {"SCHILY.xattr.user.large": "x" * 100_000}
    assert text(tree_of(tmp_path, layer((member, content), file("b"))), "a") == "1"


def test_links_are_followed_up_to_the_limit(tmp_path):
    chain = [link(str(number), str(number + 1)) for number in range(MAX_LINKS + 1)]
    tree = tree_of(tmp_path, layer(*chain, file(str(MAX_LINKS + 1), b"end")))
    assert text(tree, "1") == "end"
    assert tree.find("0") is None
