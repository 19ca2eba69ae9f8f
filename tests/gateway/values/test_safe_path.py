"""Names from outside as paths below a folder."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.values.safe_path import MAX_NAME_BYTES, MAX_PATH_BYTES, SafePath, UnsafePath, safe_name


@pytest.mark.parametrize("text", ["a", "flowers/1/model.pt", "..a/b..", ".keep", "a b", "größe/1", "ab:c", "%2e%2e/x"])
def test_relative_paths_are_safe(text, tmp_path):
    assert SafePath(text) == text
    assert SafePath(text).below(tmp_path) == tmp_path / text


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "/etc/passwd", "..", ".", "a/..", "../a", "a/../b", "a//b", "a/", "//a", "a/./b", "./a"),
        *("a\0b", "a\nb", "a\x7f", "..\\a", "a\\b", "C:a", "c:/a", "\ud800"),
    ],
)
def test_other_names_are_refused(text):
    with pytest.raises(UnsafePath):
        SafePath(text)


def test_lengths_at_the_limit_and_past_it():
    part = "é" * (MAX_NAME_BYTES // 2) + "x"
    assert SafePath(part) == part
    with pytest.raises(UnsafePath, match="a part of more than"):
        SafePath(f"{part}x")
    path = "/".join(["a" * 63] * (MAX_PATH_BYTES // 64)) + "/"
    assert SafePath(f"{path[:-1]}a") == f"{path[:-1]}a"
    with pytest.raises(UnsafePath, match=f"more than {MAX_PATH_BYTES} bytes"):
        SafePath(f"{path}a")


def test_links_that_lead_out_are_refused(tmp_path):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "a").mkdir(parents=True)
    outside.mkdir()
    (folder / "out").symlink_to(outside)
    (folder / "file").symlink_to(outside / "new")
    (folder / "loop").symlink_to("loop")
    (folder / "in").symlink_to("a")
    for text in ("out", "out/x", "file"):
        with pytest.raises(UnsafePath, match="leads out of"):
            SafePath(text).below(folder)
    assert SafePath("in/x").below(folder) == folder / "in" / "x"
    assert SafePath("loop").below(folder) == folder / "loop"


def test_a_folder_may_itself_be_reached_by_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert SafePath("a/b").below(tmp_path / "link") == tmp_path / "link" / "a" / "b"


def test_names_have_one_part():
    assert safe_name("flowers") == "flowers"
    for text in ("a/b", "..", ""):
        with pytest.raises(UnsafePath):
            safe_name(text)


@given(st.text(alphabet="./\\ab:C\0", max_size=12))
def test_what_is_accepted_stays_below_its_folder(text):
    try:
        path = SafePath(text)
    except UnsafePath:
        return
    joined = os.path.normpath(f"/folder/{path}")
    assert joined == f"/folder/{path}"
