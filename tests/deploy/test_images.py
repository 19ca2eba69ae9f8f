"""The step that ends the build of each Triton image: a server that does not classify fails it."""

import configparser
import sys

import pytest

from tests.processes import PROJECT, free_port, listens, python
from tests.settings import Settings

TRITON = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

port, behaviour = int(sys.argv[1]), sys.argv[2]
if behaviour == "ends":
    sys.exit("the model cannot be loaded")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        length = asked["inputs"][1]["data"][0]
        assert len(asked["inputs"][0]["data"]) == length and self.path == "/v2/models/mine/infer"
        if behaviour == "fails":
            return self.answer(500, {"error": "no kernel image is available"})
        first = float("nan") if behaviour == "nan" else 0.5
        outputs = {"PREDICTION": [first, 0.5], "IMAGE_STATUS": [behaviour == "refuses"]}
        self.answer(200, {"outputs": [{"name": name, "data": [*map(float, data)]} for name, data in outputs.items()]})

    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("behaviour", "code", "message"),
    [
        ("classifies", 0, "mine classifies in this image"),
        ("ends", 1, "Triton ended with code 1 before its models were ready"),
        ("fails", 1, "no kernel image is available"),
        ("nan", 1, "which are not scores"),
        ("refuses", 1, "the preprocessor refused the image with status [1.0]"),
    ],
)
def test_build_ends_with_what_triton_answers(behaviour, code, message):
    port = free_port()
    script, server = PROJECT / "deploy/images/try_models.py", (sys.executable, "-c", TRITON, port, behaviour)
    completed = python(script, "mine", *server, code=code, env={"TRITON_HTTP_URL": f"http://127.0.0.1:{port}"})
    assert message in completed.stdout + completed.stderr
    # The server has ended with the step.
    assert not listens(port)


def test_unit_is_unprivileged_and_finishes_requests_before_systemd_kills_it():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(PROJECT / "deploy/systemd/triton-image-gateway.service")
    service = unit["Service"]
    defaults = Settings.model_fields
    needed = defaults["shutdown_delay_seconds"].default + defaults["shutdown_grace_seconds"].default
    assert int(service["TimeoutStopSec"]) > needed
    # By default every process would get SIGTERM, and Triton would leave before the last answer.
    wanted = {"KillMode": "mixed", "NoNewPrivileges": "yes", "Restart": "on-failure"}
    assert {name: service[name] for name in wanted} == wanted
    assert service["User"] != "root"
    names = [word.split("=")[0] for word in service["Environment"].split()]
    known = {f"GATEWAY_{field.upper()}" for field in Settings.variables()}
    assert {name for name in names if name.startswith("GATEWAY_")} <= known
