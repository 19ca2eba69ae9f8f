"""JSON texts that are wrong, odd, or both."""

import json
import random
from collections.abc import Sequence

STRINGS = (
    '""',
    '"\\ud800"',
    '"\\udfff\\ud800"',
    '"a\\u0000b"',
    '"\\ud83d\\ude00"',
    '"\\x"',
    '"\\u12"',
    '"' + "a" * 3_000 + '"',
    '"\ud800"',
    '"\t"',
    '"é"',
    '"\u202e"',
)
NUMBERS = (
    *("0", "-0", "1", "-1", "1.5", "1e999", "-1e999", "5e-324", "1e-400", "NaN", "Infinity", "-Infinity", "01", "0x1"),
    *("9" * 30, "9" * 5_000, "1." + "0" * 5_000, "1e5000000", "18446744073709551616"),
)
OTHERS = ("null", "true", "false", "[]", "{}", "treu", "nul", "[1,]", '{"a":}', "[" * 5_000, '{"a":' * 5_000, "", " ")


def json_text(rng: random.Random, names: Sequence[str]) -> str:
    """An object with these names, of which some come twice, are odd, or have a value that is none."""
    if rng.random() < 0.2:
        return _value(rng)
    members = []
    for _ in range(rng.choice((1, 1, 2, 5, 200))):
        name = json.dumps(rng.choice(names)) if rng.random() < 0.85 else rng.choice(STRINGS)
        members.append(f"{name}: {_value(rng)}")
    return "{" + ", ".join(members) + rng.choice(("}", "}", "}", "", "]", "}}", ",}"))


def _value(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.15:
        return f"[{', '.join(rng.choice(STRINGS + NUMBERS) for _ in range(rng.choice((1, 3, 1_500))))}]"
    if kind < 0.2:
        return f"{{{rng.choice(STRINGS)}: {rng.choice(NUMBERS)}}}"
    return rng.choice(rng.choice((STRINGS, NUMBERS, OTHERS)))
