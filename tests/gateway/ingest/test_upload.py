import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EmptyFile
from gateway.ingest.upload import MAX_FILENAME_CHARACTERS, Upload, clean_filename


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("cat.jpg", "cat.jpg"),
        ("  two words.jpg ", "two words.jpg"),
        ("猫 🐈‍⬛.jpg", "猫 🐈‍⬛.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\cat.jpg", "cat.jpg"),
        ("holiday/", "holiday"),
        ("a\0b\r\nc\x1b[31m.jpg", "abc[31m.jpg"),
        ("cat\u202egpj.exe", "catgpj.exe"),
        ("\ud800.jpg", ".jpg"),
        ("", ""),
        ("/", ""),
        ("x" * 300, "x" * 255),
    ],
)
def test_filename_is_cleaned(raw, cleaned):
    assert clean_filename(raw) == cleaned


@given(st.text(max_size=400))
def test_clean_filename_is_short_and_printable_and_no_path(raw):
    cleaned = clean_filename(raw)
    assert len(cleaned) <= MAX_FILENAME_CHARACTERS
    assert not set(cleaned) & set("/\\\0\r\n\t\x1b\u2028\u202e")
    assert clean_filename(cleaned) == cleaned
    cleaned.encode()


def test_repr_of_an_upload_has_none_of_its_bytes():
    assert "secret" not in repr(Upload(0, "a", b"secret", EmptyFile()))
