"""docs/guides/streams.md: its example runs, and its tables match the code."""

import re

from gateway.plugins.streams.options import StreamParameters
from tests.doubles.backend import FRAME_LABELS, frame_backend
from tests.processes import PROJECT, python
from tests.services import stream_service

TEXT = (PROJECT / "docs" / "guides" / "streams.md").read_text()


def test_example_runs():
    code, _ = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    with stream_service(frame_backend()) as (address, _):
        code = code.replace("127.0.0.1:8080", address)
        lines = [line.split() for line in python("-c", code).stdout.splitlines()]
    assert [(line[0], line[2]) for line in lines] == [("0", "1"), ("1", "2"), ("2", "3")]
    assert {line[1] for line in lines} <= set(FRAME_LABELS)


def test_every_parameter_is_documented_with_its_default():
    told = {
        name: row.split("|")[2].strip()
        for row in re.search(r"^\| parameter \|.*?\n\n", TEXT, re.DOTALL | re.MULTILINE)[0].strip().splitlines()[2:]
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert set(told) == set(StreamParameters.model_fields)
    given = StreamParameters()
    for name in ("smoothing", "drop"):
        assert told[name] == f"`{getattr(given, name)}`"
    for name in ("alpha", "margin"):
        assert str(getattr(given, name)) in told[name]
