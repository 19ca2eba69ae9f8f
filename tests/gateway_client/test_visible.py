"""Text of unknown origin on a terminal."""

import pytest

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
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert visible(text) == shown
