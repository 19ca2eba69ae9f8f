"""Requests that follow or break the OpenAPI document get a documented response, and never 500."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.processes import Gateway

pytestmark = pytest.mark.triton


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
