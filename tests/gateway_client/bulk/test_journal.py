"""The journal of a run, and resuming from it."""

import json
import os

import pytest

from gateway_client import NamedImage
from gateway_client.bulk.journal import Journal, JournalUnreadable
from gateway_client.bulk.rows import printable
from gateway_client.bulk.run_options import OptionsDiffer
from gateway_client.bulk.sinks import converter


def row(path, error=None):
    return {"path": path, "error": error}


def images(*names):
    return [NamedImage(name, bytes) for name in names]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl.part"


def journal(path, *rows, **options):
    """The journal of a run with options that was killed after some rows."""
    journal = Journal(path, options=options)
    journal.begin()
    journal.write(rows)
    journal.close()
    return journal


def resumed(path, **options):
    journal = Journal(path, options=options)
    journal.resume()
    journal.close()
    return journal


@pytest.mark.parametrize(
    ("rows", "listed", "kept", "dropped", "left"),
    [
        # An image that is listed twice has two rows.
        ([row("a")], ("a", "a", "b"), 1, 0, ["a", "b"]),
        # Temporary errors are retried.
        *(
            ([row("a", code), row("b")], ("a", "b"), 1, 0, ["a"])
            for code in ("overloaded", "triton_unreachable", "connection_lost", "http_429")
        ),
        # An output has no duplicate rows, and no rows that contradict each other.
        ([row("a"), row("b"), row("a"), row("b", "invalid_image"), row("c")], ("a", "b", "c"), 2, 3, ["b"]),
    ],
)
def test_rows_that_are_kept_and_images_that_are_left(path, rows, listed, kept, dropped, left):
    journal(path, *rows)
    again = resumed(path)
    assert (again.rows, again.dropped) == (kept, dropped)
    assert [image.name for image in again.left(images(*listed))] == left


def test_torn_last_line_is_dropped(path):
    journal(path, row("a"), row("b"))
    path.write_bytes(path.read_bytes()[:-3])
    again = Journal(path)
    again.resume()
    again.write([row("b")])
    again.close()
    assert again.torn
    assert not resumed(path).torn
    assert [each["path"] for each in again.read()] == ["a", "b"]


def test_non_utf_8_name_is_recognised_on_resume(path):
    name = b"\xe9.png".decode(errors="surrogateescape")
    journal(path, row(printable(name)), row("café"))
    assert "café" in path.read_text()
    assert not list(resumed(path).left(images(name, "café")))


def test_journal_of_an_older_version_is_resumed(path):
    path.write_text('{"path":"\\udce9.png","error":null,"options":{}}\n')
    assert not list(resumed(path).left(images("\udce9.png")))
    assert path.read_text() == '{"path":"\\\\udce9.png","error":null,"options":{}}\n'


def test_options_are_recorded_once_and_survive_their_row(path):
    """The first row has a temporary error, so it is dropped when the run resumes; another row records the options."""
    journal(path, row("a", "overloaded"), row("b"), row("c"), top_k=3)
    again = resumed(path, top_k=3)
    assert [each.get("options") for each in again.read()] == [{"top_k": 3}, None]


@pytest.mark.parametrize(
    "line",
    [
        {"some": "thing"},
        *({**row("a"), "options": options} for options in ([], "top_k", 3)),
        *({**row("a"), "embedding": vector} for vector in ([[1]], ["1"], 1)),
    ],
    ids=str,
)
def test_other_members_than_those_of_a_first_row_are_refused(path, line):
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(JournalUnreadable, match="line 1"):
        Journal(path, embeddings="embedding" in line).resume()


def test_rows_without_recorded_options_are_checked_by_content(path):
    answer = {**row("a"), "model": "flowers", "version": "1", "predictions": [{}, {}, {}]}
    path.write_text(json.dumps(answer) + "\n")
    for options in ({"model": "fruits"}, {"version": 2}, {"top_k": 2}):
        with pytest.raises(OptionsDiffer, match="--overwrite"):
            resumed(path, **options)
    resumed(path, model="flowers", version=1, top_k=3)


@pytest.mark.parametrize(
    "line",
    [
        b"\0\xff\xfe",
        b"[" * 100_000,
        b'{"path":7,"error":null}',
        b'{"path":"a","error":7}',
        b"[]",
        b"",
        b'{"path":"a","error":null,"score":"high"}',
        b'{"path":"a","error":null,"predictions":7}',
        b'{"path":"a","error":null,"predictions":[7]}',
        b'{"path":"a","error":null,"predictions":[{"label":7}]}',
        b'{"path":"a","error":null,"predictions":[{"class_id":2147483648}]}',
        b'{"path":"a","error":null,"class_id":2147483648}',
        b'{"path":"a","error":null,"width":-1}',
        b'{"path":"a","error":null,"score":true}',
        b'{"path":"a","error":null,"score":NaN}',
        b'{"path":"a","error":null,"score":1e999}',
        b'{"path":"a"}',
        b'{"error":null}',
        b'{"path":null,"error":null}',
    ],
)
def test_invalid_row_is_refused_with_its_line_number(path, line):
    path.write_bytes(b'{"path":"b","error":null,"options":{}}\n' + line + b"\n")
    with pytest.raises(JournalUnreadable, match="line 2"):
        Journal(path).resume()
    assert path.read_bytes().endswith(line + b"\n")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_accepted_edited_rows_fit_every_output_format(tmp_path, suffix):
    """Missing members are empty, and the largest numbers fit."""
    out = tmp_path / f"out.{suffix}"
    part = tmp_path / "part"
    first = '{"path":"a","error":null}'
    last = (
        '{"path":"b","error":null,"label":"\\ud800","class_id":2147483647,"score":1e300,"width":2147483647,'
        '"predictions":[{},{"label":null,"class_id":7,"score":1}],"more":{}}'
    )
    part.write_text(f"{first}\n{last}\n")
    again = Journal(part)
    again.resume()
    again.finish(out, converter(out))
    assert out.stat().st_size


def test_fifo_journal_is_refused_without_waiting(path):
    """Opening a FIFO would wait for its other end."""
    os.mkfifo(path)
    with pytest.raises(JournalUnreadable, match="FIFO"):
        Journal(path).resume()
    assert journal(path, row("a")).path.read_text() == '{"path":"a","error":null,"options":{}}\n'


def test_link_at_the_journal_path_is_replaced(path, tmp_path):
    other = tmp_path / "other"
    other.write_text("kept")
    path.symlink_to(other)
    journal(path, row("a"))
    assert other.read_text() == "kept"
