"""`gateway prove` on this machine, and its reports."""

import json
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from gateway_cli.main import app
from gateway_local.paths import SAMPLE, SHIPPED_EXAMPLES
from gateway_models.proof.prove import Check, Proof, send_one

CHECKS = ["devices", "sizes", "cold start", "parity", "throughput", "stages", "network", "memory", "killed process"]


@pytest.mark.long
@pytest.mark.triton
def test_this_machine_is_proved(model_repository, tmp_path, monkeypatch):
    monkeypatch.setenv("GATEWAY_LOG_LEVEL", "error")
    command = ["prove", "--seconds", "3", "--into", str(tmp_path), "--model-repository", str(model_repository)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "prove.json").read_text())
    checks = {each["name"]: each for each in document["checks"]}
    assert list(checks) == CHECKS
    assert document["passed"]
    assert checks["parity"]["figures"]["largest_difference"] < 1e-3
    throughput = checks["throughput"]["figures"]
    assert throughput["failed"] == 0
    assert 0 < throughput["p50_ms"] <= throughput["p99_ms"]
    assert {"the API ms", "Triton's server ms", "preprocessor ms", "classifier ms"} == checks["stages"][
        "figures"
    ].keys()
    assert checks["memory"]["figures"].keys() >= {"preprocessor", "classifier"}
    assert checks["killed process"]["figures"]["seconds"] < 60
    assert (tmp_path / "prove.txt").read_text().endswith("passed\n")


@pytest.mark.parametrize(("passed", "wanted"), [((True, None), True), ((True, False), False), ((), True)])
def test_proof_fails_with_one_check(passed, wanted):
    proof = Proof({"cores": 2}, [Check(f"check {number}", each, ["why"]) for number, each in enumerate(passed)])
    assert proof.passed is wanted
    assert proof.as_json()["passed"] is wanted
    assert proof.as_text()[-1] == ("passed" if wanted else "FAILED")


def test_page_shows_text_as_text():
    proof = Proof({"model": "<b>"}, [Check("<i>", None, ["a < b", "second"])])
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, _: tags.append(tag)
    parser.feed(proof.as_html())
    assert not {"b", "i"} & set(tags)
    assert tags.count("br") == 1


def test_image_to_a_closed_port_is_not_classified():
    assert not send_one(1, (SHIPPED_EXAMPLES / SAMPLE).read_bytes())
