"""The decoder of JSON that clients send."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_plugins.shared.json_text import MAX_DEPTH, MAX_DIGITS, JsonError, decode, decode_string

MOST = 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            (text, "lone surrogate")
            for text in (
                '"\\ud800"',
                '{"a": ["\\udfff\\ud800"]}',
                '{"\\ud800": 1}',
                '[{"a": {"b\\udc00": null}}]',
                '"\ud800"',
            )
        ),
        ("[" * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1), "16 deep"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "16 deep"),
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1e999", "out of range"),
        ('{"a": -1e400}', "out of range"),
        ("9" * (MAX_DIGITS + 1), "more than 4300 digits"),
        ('{"a": 1, "b": 2, "a": 3}', "two members of one name"),
        ('[{"a": {"b": 1, "\\u0062": 2}}]', "two members of one name"),
        ("[" * 100_000, "nested more than 16 deep"),
        ("", "not JSON"),
        ("{} {}", "not JSON"),
        ('"\\x"', "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
    ],
)
def test_refusal_names_the_reason(text, words):
    with pytest.raises(JsonError, match=words):
        decode(text, max_bytes=MOST)


def test_text_may_be_as_long_as_its_limit():
    text = json.dumps("x" * 98)
    assert decode(text, max_bytes=100) == "x" * 98
    with pytest.raises(JsonError, match="more than 99 characters"):
        decode(text, max_bytes=99)
    assert decode("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH, max_bytes=MOST)
    assert decode("9" * MAX_DIGITS, max_bytes=MOST) == int("9" * MAX_DIGITS)


def test_single_string_follows_the_same_rules():
    assert decode_string("a\\u0041\\ud83d\\ude00") == "aA😀"
    for raw in ("\\ud800", "\\x", "\\u12"):
        with pytest.raises(JsonError):
            decode_string(raw)


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(DOCUMENTS)
def test_every_document_is_decoded(document):
    assert decode(json.dumps(document), max_bytes=MOST) == document
    assert decode(json.dumps(document, ensure_ascii=False).encode(), max_bytes=MOST) == document


@given(st.text() | st.binary())
def test_any_text_is_decoded_or_refused(text):
    try:
        value = decode(text, max_bytes=MOST)
    except JsonError:
        return
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
