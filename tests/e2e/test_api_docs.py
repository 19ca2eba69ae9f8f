"""docs/api.md tells what the service answers, to the digit."""

import json
import re
import subprocess

import pytest

from tests.processes import PROJECT, Gateway

pytestmark = pytest.mark.triton

TEXT = (PROJECT / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"^```\n\$ (curl .+)\n((?:.+\n)+)```$", TEXT, re.MULTILINE)


def is_told(told: object, answer: object) -> bool:
    """Whether an answer is as it is told; "…" stands for anything, and at the end of a list for more."""
    if told == "…":
        return True
    if isinstance(told, dict):
        return (
            isinstance(answer, dict) and list(told) == list(answer) and all(is_told(told[k], answer[k]) for k in told)
        )
    if isinstance(told, list) and isinstance(answer, list):
        count = len(told) - 1 if told and told[-1] == "…" else max(len(told), len(answer))
        return len(answer) >= count and all(map(is_told, told[:count], answer[:count]))
    return answer == pytest.approx(told, abs=2e-5) if isinstance(told, float) else answer == told


def values(text: str) -> list[object]:
    """The JSON values of a text, one after the other."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def test_there_are_examples():
    assert len(EXAMPLES) == TEXT.count("```\n$ ") >= 10


@pytest.mark.parametrize(("command", "told"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_documented_example_gets_its_documented_response(gateway: Gateway, command: str, told: str):
    command = command.replace("http://127.0.0.1:8080", gateway.url)
    answer = subprocess.run(["bash", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert is_told(values(told), values(answer)), answer


def test_every_parameter_is_documented():
    from gateway.api.parameters import PredictParameters

    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(PredictParameters.model_fields)
