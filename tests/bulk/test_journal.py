"""The rows so far, and going on from them."""

import json

import pytest

from gateway.bulk.journal import Journal, JournalUnreadable
from gateway.bulk.rows import printable
from gateway.client import Picture


def row(path, error=None):
    return {"path": path, "error": error}


def pictures(*names):
    return [Picture(name, bytes) for name in names]


def names(found):
    return [picture.name for picture in found]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl.part"


def journal(path, *rows):
    journal = Journal(path)
    journal.begin()
    journal.write(rows)
    journal.close()
    return journal


def resumed(path):
    journal = Journal(path)
    journal.resume()
    journal.close()
    return journal


def test_what_has_a_row_is_not_done_again(path):
    journal(path, row("a"), row("b", "invalid_image"))
    again = resumed(path)
    assert names(again.left(pictures("a", "b", "c"))) == ["c"]
    assert (again.rows, again.failed) == (2, {"invalid_image": 1})


def test_a_picture_that_is_listed_twice_has_two_rows(path):
    journal(path, row("a"))
    again = resumed(path)
    assert names(again.left(pictures("a", "a", "b"))) == ["a", "b"]


def test_a_torn_last_line_is_dropped(path):
    journal(path, row("a"), row("b"))
    path.write_bytes(path.read_bytes()[:-3])
    again = Journal(path)
    again.resume()
    again.write([row("b")])
    again.close()
    assert [each["path"] for each in again.read()] == ["a", "b"]


@pytest.mark.parametrize("code", ["overloaded", "triton_unreachable", "connection_lost", "http_429"])
def test_a_passing_error_is_tried_again(path, code):
    journal(path, row("a", code), row("b"))
    again = resumed(path)
    assert names(again.left(pictures("a", "b"))) == ["a"]


def test_a_name_that_is_no_utf_8_is_known_again(path):
    name = b"\xe9.png".decode(errors="surrogateescape")
    journal(path, row(printable(name)), row("café"))
    assert "café" in path.read_text()
    assert not list(resumed(path).left(pictures(name, "café")))


def test_a_journal_with_surrogates_of_an_older_version_goes_on(path):
    path.write_text('{"path":"\\udce9.png","error":null}\n')
    assert not list(resumed(path).left(pictures("\udce9.png")))
    assert path.read_text() == '{"path":"\\\\udce9.png","error":null}\n'


def test_what_is_no_journal_is_refused(path):
    path.write_text('{"some": "thing"}\n')
    with pytest.raises(JournalUnreadable, match="line 1"):
        Journal(path).resume()


def test_the_output_appears_whole_and_the_journal_goes(path, tmp_path):
    out = tmp_path / "out.json"
    done = journal(path, row("a"))
    done.finish(out, lambda rows, temporary: temporary.write_text(json.dumps(list(rows))))
    assert json.loads(out.read_text()) == [row("a")]
    assert list(tmp_path.iterdir()) == [out]
