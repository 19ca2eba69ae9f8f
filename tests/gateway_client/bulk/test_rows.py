"""The table of a run's rows, from which it resumes."""

import os

import pytest

from gateway_client.bulk import BulkError
from gateway_client.bulk.outputs import printable
from gateway_client.bulk.rows import Rows


def row(path, error=None, version="1"):
    answered = None if error else version
    return {"path": path, "error": error, "model": answered and "flowers", "version": answered}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl.part"


def opened(path, *rows, resume=True, **options):
    table = Rows(path, {"model": None, "version": None, **options}, resume=resume)
    for each in rows:
        table.add(each)
    return table


@pytest.mark.parametrize("code", ["overloaded", "triton_unreachable", "connection_lost", "http_429"])
def test_temporary_errors_are_tried_again(path, code):
    opened(path, row("a", code), row("b"), row("c", "invalid_image")).close()
    again = opened(path)
    assert ([each["path"] for each in again], again.failed()) == (["b", "c"], {"invalid_image": 1})
    assert [again.has(name) for name in "abc"] == [False, True, True]
    again.close()


def test_names_that_are_not_utf_8_are_recognised(path):
    name = b"\xe9.png".decode(errors="surrogateescape")
    opened(path, row(printable(name)), row("café")).close()
    again = opened(path)
    assert again.has(name)
    assert again.has("café")
    again.close()


def test_answer_of_another_version_is_refused(path):
    table = opened(path, row("a", "unsupported_format"), row("b"))
    with pytest.raises(BulkError, match="a table has one version"):
        table.add(row("c", version="2"))
    table.close()


@pytest.mark.parametrize("content", [b"text that is no table", b"SQLite format 3\0" + bytes(5000)])
def test_file_that_is_no_table_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(BulkError, match="cannot be used"):
        opened(path)
    assert path.read_bytes() == content


def test_fifo_is_refused_without_waiting_and_a_link_is_replaced(path, tmp_path):
    os.mkfifo(path)
    with pytest.raises(BulkError, match="not a file"):
        opened(path)
    path.unlink()
    (other := tmp_path / "other").write_text("kept")
    path.symlink_to(other)
    opened(path, row("a"), resume=False).close()
    assert other.read_text() == "kept"
