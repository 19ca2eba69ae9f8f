"""Text of unknown origin: on a terminal, and in CSV cells."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_client.csv_cells import csv_line, is_formula, neutral, restored
from gateway_client.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("café 猫.png", "café 猫.png"),
        ("\x1b[2Ja", r"\x1b[2Ja"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("a\u202egnp.exe", r"a\u202egnp.exe"),
        ("\u2066\u200b\ufeff\u2028", r"\u2066\u200b\ufeff\u2028"),
        ("\udce9\ud800", r"\udce9\ud800"),
        ("\x7f\0", r"\x7f\x00"),
        ("\U000e0041", r"\U000e0041"),
        (f"{'a' * 200_000}.jpg is large", f"{'a' * 150}…{'a' * 145}.jpg is large"),
        ("ab " * 70_000, ("ab " * 667)[:2_000] + "…" + ("ab " * 667)[-1_999:]),
    ],
    ids=repr,
)
def test_control_characters_are_escaped(text, shown):
    assert visible(text) == shown


FORMULAS = [
    "=1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n1",
    " =1",
    '"=1',
    "'=1",
    "'' -1",
    "\ufeff=1",
    "\uff1d1",
    "\0=1",
]
SIGNS = st.text(st.sampled_from("=+-@'\"\t\r\n ;,a\ufeff"), max_size=6) | st.text(max_size=6)


@pytest.mark.parametrize("text", FORMULAS)
def test_formula_is_neutralised(text):
    assert neutral(text) == f"'{text}"
    assert not is_formula(csv_line([text])[1:2])


@pytest.mark.parametrize("text", ["a=1", "", "cat", "photos/-1.png", "1-2", "'quoted'"])
def test_other_text_stays_as_it_is(text):
    assert neutral(text) == text


def test_numbers_stay_numbers_and_separators_are_quoted():
    assert csv_line([-1, -0.5, None, True]) == "-1,-0.5,,True\r\n"
    assert csv_line(["a;=1", "b|=1", 'c"d']) == '"a;=1","b|=1","c""d"\r\n'


@given(st.lists(SIGNS, min_size=2, max_size=4))
def test_texts_survive_a_round_trip(texts):
    (row,) = csv.reader(io.StringIO(csv_line(texts), newline=""))
    assert [restored(cell) for cell in row] == texts
