"""The documentation of the API: its examples, and answers to requests that follow or break its OpenAPI document."""

import json
import re
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings

from tests.processes import PROJECT, Gateway, python

TUTORIAL, TEXT, README = (
    (PROJECT / page).read_text()
    for page in ("docs/tutorials/first-service.md", "docs/reference/http-api.md", "README.md")
)
EXAMPLES = re.findall(r"^```console\n\$ (curl .+)\n((?:.+\n)+)```$", TUTORIAL + TEXT, re.MULTILINE)


def matches(documented: object, answer: object) -> bool:
    """Whether a response matches the documented one; "…" stands for any text, at the end of a list for more items."""
    if documented == "…":
        return True
    if isinstance(documented, dict):
        return (
            isinstance(answer, dict)
            and list(documented) == list(answer)
            and all(matches(documented[k], answer[k]) for k in documented)
        )
    if isinstance(documented, list) and isinstance(answer, list):
        count = len(documented) - 1 if documented and documented[-1] == "…" else max(len(documented), len(answer))
        return len(answer) >= count and all(map(matches, documented[:count], answer[:count]))
    return answer == pytest.approx(documented, abs=2e-5) if isinstance(documented, float) else answer == documented


def values(text: str) -> list[object]:
    """The JSON values of a text, in order, as an installation without the decoder of HEIC gives them."""
    found, decoder, text = [], json.JSONDecoder(), text.replace("AVIF, HEIC or", "AVIF or")
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


@pytest.mark.parametrize(("command", "documented"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_documented_example_gets_its_documented_response(real_gateway: Gateway, command: str, documented: str):
    command = command.replace("http://127.0.0.1:8080", real_gateway.url)
    answer = subprocess.run(["bash", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert matches(values(documented), values(answer)), answer


def test_tutorial_code_prints_its_documented_output(real_gateway: Gateway):
    (code,) = re.findall(r"^```python\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE)
    code = code.replace("http://127.0.0.1:8080", real_gateway.url)
    lines = python("-c", code).stdout.splitlines()
    assert all(f"`{line}`" in TUTORIAL for line in lines)
    assert len(lines) == 2


def test_v2_example_prints_its_documented_output(real_gateway: Gateway):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT.partition("## /v2")[2], re.DOTALL)
    documented = re.search(r"print\(.*\)  # (.*)", code)
    assert documented
    assert python("-c", code.replace("http://127.0.0.1:8080", real_gateway.url)).stdout.strip() == documented[1]


def test_every_parameter_is_documented():
    from gateway.api.parameters import PredictParameters

    (section,) = re.findall(r"^## POST /predict$(.*?)^## ", TEXT, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(PredictParameters.model_fields)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["POSITIVE", "NEGATIVE"])
def test_every_response_matches_the_schema(gateway: Gateway, kind: str):
    # Its import takes a second, too long for the collection of tests.
    import schemathesis
    from schemathesis.specs.openapi import checks

    asked_of_answers = (
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    )
    mode = schemathesis.GenerationMode[kind]
    document = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    operations = [operation.ok() for operation in document.get_all_operations()]
    assert len(operations) > 5
    if mode is schemathesis.GenerationMode.NEGATIVE:
        operations = [each for each in operations if each.query or each.body]

    for operation in operations:

        @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case):
            answer = case.call(timeout=30)
            # 503 and 504 are allowed: hypothesis also tries a timeout of 5e-324 s.
            assert answer.status_code != 500
            case.validate_response(answer, checks=asked_of_answers)

        check()
