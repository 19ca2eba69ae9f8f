"""Tables, and their places in documents."""

import re

import pytest

from bench.candidates import Load, cost_table
from bench.measurement import Measurement, Series
from bench.output import NoMarkers, put
from bench.parts import report
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
    "docs/explanation/performance.md": {
        *(f"bench of {model}" for model in MODELS),
        "bench --peers",
        "bench.feed",
        "bench.curve",
    },
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


def test_document_without_markers_is_unchanged(tmp_path):
    document = tmp_path / "page.md"
    document.write_text(TEXT)
    with pytest.raises(NoMarkers, match=r"has no lines <!-- bench\.curve: begin -->"):
        put(document, "bench.curve", "| new |\n")
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


def test_parts_are_shares_of_the_bare_limit():
    bare = Measurement(images=100, seconds=1.0, cpu_seconds={"bare": 0.4})
    single = Measurement(50, 1.0, [0.01, 0.03], {"load": 0.01, "gateway": 0.1, "Triton": 0.3})
    text = report({"a": Series([bare]), "c": Series([single])}, 1.0, 2)
    header, limit, one = cells(text)
    assert header[4:] == ["CPU: client", "CPU: gateway", "CPU: Triton", "in all", "share of (a)"]
    assert limit == ["(a) bare processes in a loop", "100", "", "", "", "", "", "4.00 ms", "1.00"]
    times = ["0.20 ms", "2.00 ms", "6.00 ms", "8.20 ms"]
    assert one == ["(c) POST /predict, one file", "50", "0.50 (0.50 – 0.50)", "10, 30 ms", *times, "0.49"]
    assert "Rounds: 1 of 1 s each, on 2 cores; other processes kept 0.0 of them busy at most." in text


def test_costs_are_ratios_to_the_named_service():
    measured = {Load("32 in flight", 32): {"this": series(200), "before": series(100, cpu_seconds=2.0)}}
    header, this, before = cells(cost_table(measured, "before", "calls an image"))
    assert header[3:6] == ["× before", "images/s a core", "calls an image"]
    assert this[2:6] == ["150", "2.00 (2.00 – 2.00)", "133", "1.50"]
    assert this[-2:] == ["7.50 ms", "0.25 (0.25 – 0.25)"]
    assert (before[3], before[-1]) == ("1", "1")


def test_peers_are_compared_within_a_round_with_the_faster_one():
    """LitServe is faster in the first round, the naive service in the second."""
    lit, naive = Series([series(100)[0], series(90)[1]]), Series([series(80)[0], series(100)[1]])
    services = {"this service": series(150), "LitServe": lit, "naive FastAPI + torch": naive}
    services |= {"LitServe + ONNX Runtime": series(120), "naive FastAPI + ONNX Runtime": series(200)}
    measured = {Load("32 in flight", 32): services, Load("200 files in one request¹", 1, 200): services}
    rows = cells(peers_report(measured))
    ratios = ["1.50 (1.50 – 1.50)", "0.75 (0.75 – 0.75)"]
    assert rows[1][:7] == ["32 in flight", "this service", "112", "1", *ratios, "10.0 ms"]
    assert rows[2][3:6] == ["0.63 (0.60 – 0.67)", "", ""]
    assert rows[7][8:] == ["", ""]
    short = summary({"network": measured})
    assert cells(short)[1][-2:] == ratios
    assert cells(brief(measured))[1][3::2] == ratios
    assert "¹ The peers take one file a request" in short
