"""Tables, and their places in documents."""

import re

import pytest

from bench.candidates import Load
from bench.measurement import Measurement, Series
from bench.output import put
from bench.peers.measure import brief, summary
from bench.peers.measure import report as peers_report
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

PROJECT = DEFAULT_MODEL_REPOSITORY.parent
TEXT = """\
before
<!-- bench.feed: begin -->
old
<!-- bench.feed: end -->
<!-- other: begin -->
kept
<!-- other: end -->
"""
MODELS = ("mobilenet-v3-small", "efficientnet-lite0")
COMMANDS = {
    "bench/RESULTS.md": {*(f"bench of {model}" for model in MODELS), "bench.feed", "bench.curve"},
    "docs/explanation/performance.md": {"bench --peers"},
    "README.md": {"bench --peers in brief"},
}


def cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]


def series(rate: float, *, cpu_seconds: float = 1.0) -> Series:
    """Two rounds of a second each, the second on a machine half as fast."""
    return Series(
        Measurement(int(rate / slower), 1.0, [0.01 * slower, 0.03 * slower], {"gateway": cpu_seconds}, counted=rate)
        for slower in (1, 2)
    )


def test_table_replaces_the_one_between_its_markers(tmp_path):
    document = tmp_path / "page.md"
    document.write_text(TEXT)
    put(document, "bench.feed", "| new |\n")
    assert document.read_text() == TEXT.replace("old", "| new |")
    put(document, "bench.feed", "old\n")
    assert document.read_text() == TEXT


@pytest.mark.parametrize(
    ("page", "commands"), COMMANDS.items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_that_writes_a_table_has_markers(tmp_path, page, commands):
    document = tmp_path / "page.md"
    document.write_text(text := (PROJECT / page).read_text())
    assert set(re.findall(r"<!-- (.+): begin -->", text)) >= commands
    for command in commands:
        put(document, command, "| new |\n")
    assert document.read_text().count("| new |") == len(commands)


def test_peers_are_compared_within_a_round_with_the_faster_one():
    """LitServe is faster in the first round, the naive service in the second."""
    lit, naive = Series([series(100)[0], series(90)[1]]), Series([series(80)[0], series(100)[1]])
    services = {"this service": series(150), "LitServe": lit, "naive FastAPI + torch": naive}
    services |= {"LitServe + ONNX Runtime": series(120), "naive FastAPI + ONNX Runtime": series(200)}
    written = {"naive FastAPI + torch, as written": 100, "naive FastAPI + ONNX Runtime, as written": 60}
    services |= {name: series(rate) for name, rate in written.items()}
    measured = {Load("32 in flight", 32): services, Load("200 files in one request¹", 1, 200): services}
    rows = cells(peers_report(measured))
    ratios = ["1.50 (1.50 – 1.50)", "0.75 (0.75 – 0.75)", "1.50 (1.50 – 1.50)"]
    assert rows[1][:8] == ["32 in flight", "this service", "112", "1", *ratios, "10.0 ms"]
    assert rows[2][3:7] == ["0.63 (0.60 – 0.67)", "", "", ""]
    assert rows[9][9:] == ["", ""]
    short = summary({"network": measured})
    assert cells(short)[1][-3:] == ratios
    assert cells(short)[1][2].endswith(" ms)")
    assert [row[3:] for row in cells(brief(measured))[1:]] == [ratios[1:]]
    assert "¹ The peers take one file a request" in short
