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


def names(found):
    return [image.name for image in found]


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


def test_images_with_a_row_are_skipped(path):
    journal(path, row("a"), row("b", "invalid_image"))
    again = resumed(path)
    assert names(again.left(images("a", "b", "c"))) == ["c"]
    assert (again.rows, again.failed) == (2, {"invalid_image": 1})


def test_image_listed_twice_has_two_rows(path):
    journal(path, row("a"))
    again = resumed(path)
    assert names(again.left(images("a", "a", "b"))) == ["a", "b"]


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


@pytest.mark.parametrize("code", ["overloaded", "triton_unreachable", "connection_lost", "http_429"])
def test_temporary_errors_are_retried(path, code):
    journal(path, row("a", code), row("b"))
    again = resumed(path)
    assert names(again.left(images("a", "b"))) == ["a"]


def test_non_utf_8_name_is_recognised_on_resume(path):
    name = b"\xe9.png".decode(errors="surrogateescape")
    journal(path, row(printable(name)), row("café"))
    assert "café" in path.read_text()
    assert not list(resumed(path).left(images(name, "café")))


def test_journal_of_an_older_version_is_resumed(path):
    path.write_text('{"path":"\\udce9.png","error":null,"options":{}}\n')
    assert not list(resumed(path).left(images("\udce9.png")))
    assert path.read_text() == '{"path":"\\\\udce9.png","error":null,"options":{}}\n'


def test_other_files_are_refused_as_journal(path):
    path.write_text('{"some": "thing"}\n')
    with pytest.raises(JournalUnreadable, match="line 1"):
        Journal(path).resume()


def test_finished_output_replaces_the_journal(path, tmp_path):
    out = tmp_path / "out.json"
    done = journal(path, row("a"))
    done.finish(out, lambda rows, temporary: temporary.write_text(json.dumps(list(rows))))
    assert json.loads(out.read_text()) == [{**row("a"), "options": {}}]
    assert list(tmp_path.iterdir()) == [out]


def journal_with(path, **options):
    return Journal(path, options=options)


def interrupted(path, *rows, **options):
    """The journal of a run with options that was killed after some rows."""
    began = journal_with(path, **options)
    began.begin()
    began.write(rows)
    began.close()


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"top_k": 3}, {"top_k": 5}, r"with --top-k 3, .* with --top-k 5"),
        ({}, {"model": "flowers"}, r"without --model, .* with --model flowers"),
        ({"threshold": 0.5}, {}, r"with --threshold 0.5, .* without --threshold"),
        ({"labels": ["cat,dog"]}, {"labels": ["cat"]}, r"with --labels cat,dog, .* with --labels cat"),
    ],
)
def test_rows_of_different_options_are_not_mixed(path, before, now, words):
    interrupted(path, row("a"), **before)
    with pytest.raises(OptionsDiffer, match=words):
        journal_with(path, **now).resume()
    assert [each["path"] for each in Journal(path).read()] == ["a"]


def test_options_are_kept_across_interruptions(path):
    for _ in range(2):
        interrupted(path, row("a"), top_k=3, model=None)
        again = journal_with(path, top_k=3)
        again.resume()
        again.close()
    with pytest.raises(OptionsDiffer):
        journal_with(path, top_k=4).resume()


def test_options_are_recorded_once_and_survive_their_row(path):
    """The first row has a temporary error, so it is dropped when the run resumes; another row records the options."""
    interrupted(path, {**row("a"), "error": "overloaded"}, row("b"), row("c"), top_k=3)
    again = journal_with(path, top_k=3)
    again.resume()
    again.close()
    assert [each.get("options") for each in again.read()] == [{"top_k": 3}, None]


@pytest.mark.parametrize("options", [[], "top_k", 3])
def test_row_with_malformed_options_is_refused(path, options):
    path.write_text(json.dumps({**row("a"), "options": options}) + "\n")
    with pytest.raises(JournalUnreadable, match="line 1"):
        Journal(path).resume()


def test_rows_without_recorded_options_are_checked_by_content(path):
    answer = {**row("a"), "model": "flowers", "version": "1", "predictions": [{}, {}, {}]}
    path.write_text(json.dumps(answer) + "\n")
    for options in ({"model": "fruits"}, {"version": 2}, {"top_k": 2}):
        with pytest.raises(OptionsDiffer, match="--overwrite"):
            journal_with(path, **options).resume()
    again = journal_with(path, model="flowers", version=1, top_k=3)
    again.resume()
    again.close()


def test_no_files_are_left_beside_the_output(path, tmp_path):
    interrupted(path, row("a"), top_k=3)
    again = journal_with(path, top_k=3)
    again.resume()
    again.finish(tmp_path / "out.jsonl", None)
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]
    empty = journal_with(tmp_path / "other.part")
    empty.begin()
    empty.abandon()
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]


def test_resume_keeps_one_of_equal_rows_and_drops_conflicting_ones(path):
    """An output has no duplicate rows, and no rows that contradict each other."""
    journal(path, row("a"), row("b"), row("a"), row("b", "invalid_image"), row("c"))
    again = resumed(path)
    assert (again.rows, again.dropped) == (2, 3)
    assert names(again.left(images("a", "b", "c"))) == ["b"]


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


@pytest.mark.parametrize("kind", ["vectors", "texts", "number"])
def test_edited_embedding_must_have_numbers(path, kind):
    vector = {"vectors": [[1]], "texts": ["1"], "number": 1}[kind]
    path.write_text(json.dumps({**row("a"), "embedding": vector}) + "\n")
    with pytest.raises(JournalUnreadable, match="line 1"):
        Journal(path, embeddings=True).resume()


def test_rows_of_other_images_are_kept_and_counted(path):
    journal(path, row("a"), row("gone"), row("left"))
    again = resumed(path)
    assert names(again.left(images("a", "b"))) == ["b"]
    assert again.foreign == 2


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
