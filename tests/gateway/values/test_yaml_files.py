"""YAML of other people becomes plain values, or is refused with its line; nothing in it is expanded or executed."""

import json
from itertools import pairwise

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.values.yaml_files import MAX_CHARACTERS, YamlError, parse_yaml

LAUGHS = "a: &a [x]\n" + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghi"))
"""443 bytes that are 43 million values."""
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\ufffe\uffff\u2028\u2029"))
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | texts | st.floats(-1e9, 1e9),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(texts, each, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: 1\nb: [x, 'y']\nc: {d: }", {"a": 1, "b": ["x", "y"], "c": {"d": None}}),
        ("[yes, Off, 'no', ~, null]", [True, False, "no", None, None]),
        ("[0, -7, 1.5, .5, 1., 2e3, -1.5E-3]", [0, -7, 1.5, 0.5, 1.0, 2000.0, -0.0015]),
        # What YAML 1.1 would make 7, 31, 1000, 90 and a date of; and words that are no numbers in it.
        *((f"- {text}", [text]) for text in ("007", "0x1F", "1_000", "1:30", "2001-01-01", "2001-99-99", "+7")),
        *((f"- {text}", [text]) for text in (".nan", ".inf", "1.2.3", "e5", ".", "<<", "=", "9" * 4_001)),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_are_plain(text, value):
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, "line 1: anchors and aliases"),
        ("a: &a {b: *a}", "line 1: anchors and aliases"),
        ("a: 1\n<<: *b", "line 2: anchors and aliases"),
        ("a: !!python/object/apply:os.system [id]", "line 1: the tag 'tag:yaml.org,2002:python/object/"),
        ("a: !!timestamp 2001-99-99", "line 1: the tag"),
        ("a: 1\nb: 2\na: 3", "line 3: 'a' occurs twice"),
        ("1: a\n1: b", "line 2: 1 occurs twice"),
        ("? [a]\n: b", "the name of an entry must be text"),
        ("a: 1\n---\nb: 1", "line 2: a second document"),
        ("a: [", "line [12]: "),
        ("\tb: 1", "line 1: "),
        ("a: \x07", "special characters|control characters"),
        ("[" * 100_000, "more than 32 levels"),
        ("[" + "0," * 1_001 + "]", "more than 1,000 values"),
        ("a" * (MAX_CHARACTERS + 1), "more than 1,048,576 characters"),
        ("a" * 900 + ": 1\n" + "a" * 900 + ": 1", "aaa… occurs twice"),
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("libyaml", [True, False])
def test_other_yaml_is_refused_with_its_line(monkeypatch, text, said, libyaml):
    monkeypatch.setattr("gateway.values.yaml_files.MAX_NODES", 1_000)
    if not libyaml:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    with pytest.raises(YamlError, match=said) as caught:
        parse_yaml(text)
    assert len(str(caught.value)) < 200


@given(plain)
def test_what_others_write_is_read_as_it_was_meant(value):
    for written in (yaml.safe_dump(value, allow_unicode=True), json.dumps(value, ensure_ascii=False)):
        # YAML 1.1 ends a line at U+0085, and a number such as 1e+20 is text in it.
        if "\x85" not in written:
            assert parse_yaml(written) == value


@given(st.text(st.characters(), max_size=60) | st.text("&*!|>%@`-?:[]{},#'\"\\ \n\tab01.", max_size=60))
@example("\ud800")
@example("%YAML 9.9\n---\na")
def test_any_text_is_a_value_or_an_error(text):
    try:
        json.dumps(parse_yaml(text))
    except YamlError as exc:
        assert 0 < len(str(exc)) < 200  # noqa: PT017  # either is right
