"""The OpenAPI document: each line of JSON lines has a schema, and a failure to make the document is not kept."""

import json

import jsonschema
import pytest

from gateway.api.openapi import LINES
from gateway.app import create_app
from tests.doubles.backend import PNG, StubBackend
from tests.services import client_of_app
from tests.settings import Settings

NDJSON = "application/x-ndjson"


@pytest.fixture
def app():
    return create_app(Settings(_env_file=None), StubBackend())


def test_lines_have_a_schema(app):
    with client_of_app(app) as client:
        document = client.get("/openapi.json").json()
        content = document["paths"]["/predict"]["post"]["responses"]["200"]["content"]
        schema = {**content[NDJSON][LINES], "components": document["components"]}
        form = [("files", ("a.png", PNG, "image/png")), ("files", ("b.txt", b"no picture", "text/plain"))]
        answer = client.post("/predict", files=form, headers={"Accept": NDJSON})
        lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [sorted(line.keys() & {"error", "predictions", "summary"}) for line in lines][-1] == ["summary"]
    assert len(lines) == 3
    for line in lines:
        jsonschema.validate(line, schema)
    for wrong in ({}, {**lines[0], "model": None}, {"summary": {"ok": 1}}, {"model": lines[0]["model"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_lines_of_each_endpoint_refer_to_schemas(app):
    with client_of_app(app) as client:
        document = client.get("/openapi.json").json()
    found = {}
    for path, operations in document["paths"].items():
        lines = operations.get("post", {}).get("responses", {}).get("200", {}).get("content", {}).get(NDJSON)
        if lines:
            text = json.dumps(lines[LINES])
            found[path] = {name for name in document["components"]["schemas"] if f'schemas/{name}"' in text}
    assert found["/predict"] == {"ResultOut", "ModelOut", "StreamedSummary", "Problem"}
    assert found["/embed"] >= {"ModelOut", "StreamedSummary", "Problem"}
    assert found["/explain"] == {"StreamedProgress", "ExplainResponse", "Problem"}


def test_failure_to_make_the_document_is_not_kept(app):
    make, failures = app.openapi, [RuntimeError("out of memory")]

    def failing():
        if failures:
            raise failures.pop()
        return make()

    app.openapi = failing
    with client_of_app(app) as client:
        assert client.get("/openapi.json").status_code == 500
        assert "/predict" in client.get("/openapi.json").json()["paths"]
