"""`gateway classify` by itself: it starts a service for the run, and nothing of it is left."""

import json

import psutil
import pytest

from tests.processes import environment, python


@pytest.mark.usefixtures("runtime", "model_repository")
def test_classify_without_url_starts_and_stops_a_service(tmp_path):
    out = tmp_path / "out.jsonl"
    sources, options = ("examples/cat.jpg", "README.md"), ("--out", out, "--top-k", "1")
    run = python("-m", "gateway_cli", "classify", *sources, *options, code=3, env=environment())
    rows = {row["path"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert rows["examples/cat.jpg"]["label"] == "Egyptian cat"
    assert rows["README.md"]["error"] == "unsupported_format"
    port = run.stderr.partition("on http://127.0.0.1:")[2].partition(" ")[0].partition("\n")[0]
    commands = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"]]
    assert port
    assert not [command for command in commands if "up" in command and port in command]
