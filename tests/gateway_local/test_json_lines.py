"""The status lines of `gateway up` as JSON lines, for log collectors."""

import json

from gateway_local.display import JsonLines


def test_json_lines_have_time_and_level(capsys):
    display = JsonLines()
    with display.waiting("starting Triton"):
        display.log('triton | I1122 15:46:36.417382 507 model_lifecycle.cc:472] "loading: classifier:1"')
        display.log('triton | E1122 15:48:52.020990 507 scheduler.cc:1468] "unable to create\\na stream"')
        display.log("triton | | Model | Version |")
        display.log("triton | ")
    display.say("ready: \u201copen\u201d")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(line.pop("timestamp").endswith("Z") for line in lines)
    assert lines == [
        {"level": "info", "event": "up", "message": "starting Triton"},
        {"level": "info", "event": "triton", "message": "loading: classifier:1"},
        {"level": "error", "event": "triton", "message": "unable to create\\na stream"},
        {"level": "info", "event": "triton", "message": "| Model | Version |"},
        {"level": "info", "event": "up", "message": "ready: \u201copen\u201d"},
    ]
