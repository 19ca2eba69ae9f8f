"""The decoder of JSON that clients send."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ingest.json_text import MAX_VALUES, JsonError, decode

MOST = 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        *('"\\ud800"', '{"a": ["\\udfff\\ud800"]}', '{"\\ud800": 1}', '"\ud800"'),
        *("NaN", "[-Infinity]", "1e999", '{"a": [-1e400]}', "9" * 5_000),
        *("[" * 100_000, "", "{} {}", '"\\x"', b'"\xff"', "[" + "{}," * MAX_VALUES + "{}]"),
    ],
)
def test_invalid_text_is_refused(text):
    """Lone surrogates, numbers without a finite value, deep nesting, invalid JSON or UTF-8, many values."""
    with pytest.raises(JsonError):
        decode(text, max_bytes=MOST)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_text_of_another_encoding_is_named(encoding):
    """Windows PowerShell sends both."""
    with pytest.raises(JsonError, match="it is not UTF-8"):
        decode('{"filename": "Kätzchen.jpg"}'.encode(encoding), max_bytes=MOST)


def test_text_may_be_as_long_as_its_limit():
    text = json.dumps("x" * 98)
    assert decode(text, max_bytes=100) == "x" * 98
    with pytest.raises(JsonError, match="more than 99 characters"):
        decode(text, max_bytes=99)


def test_last_of_two_members_with_one_name_counts():
    assert decode('{"a": 1, "a": 2}', max_bytes=MOST) == {"a": 2}


@given(st.text() | st.binary())
def test_any_text_is_decoded_or_refused(text):
    try:
        value = decode(text, max_bytes=MOST)
    except JsonError:
        return
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
