"""Tables go to their places in documents, and nowhere else."""

import re

import pytest

from bench.measurement import Measurement
from bench.report import Report
from bench.tables import NoMarkers, put
from gateway_local.runtime import DEFAULT_MODEL_REPOSITORY

DOCS = DEFAULT_MODEL_REPOSITORY.parent / "docs"
TEXT = """\
before
<!-- bench.hot: begin -->
old
<!-- bench.hot: end -->
<!-- other: begin -->
kept
<!-- other: end -->
"""


def test_table_replaces_the_one_between_its_markers(tmp_path):
    document = tmp_path / "page.md"
    document.write_text(TEXT)
    put(document, "bench.hot", "| new |\n")
    assert document.read_text() == TEXT.replace("old", "| new |")
    put(document, "bench.hot", "old\n")
    assert document.read_text() == TEXT


def test_document_without_markers_is_unchanged(tmp_path):
    document = tmp_path / "page.md"
    document.write_text(TEXT)
    with pytest.raises(NoMarkers, match=r"has no lines <!-- bench\.large: begin -->"):
        put(document, "bench.large", "| new |\n")
    assert document.read_text() == TEXT


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        (
            "explanation/performance.md",
            {
                "bench of mobilenet-v3-small",
                "bench of efficientnet-lite0",
                "bench of mobilenet-v3-small beside peers",
                "bench.tensors",
                "bench.hot",
                "bench.large",
            },
        ),
        ("explanation/fidelity.md", {"bench.score_changes"}),
        ("explanation/attacks.md", {"make attack"}),
    ],
)
def test_every_command_that_writes_a_table_has_markers(tmp_path, page, commands):
    document = tmp_path / "page.md"
    document.write_text(text := (DOCS / page).read_text())
    assert set(re.findall(r"<!-- (.+): begin -->", text)) >= commands
    for command in commands:
        put(document, command, "| new |\n")
    assert document.read_text().count("| new |") == len(commands)


def test_report_is_a_table_of_shares_and_processor_time():
    bare = Measurement(images=100, seconds=1.0, cpu_seconds={"bare": 0.4})
    single = Measurement(
        images=50,
        seconds=1.0,
        latencies_seconds=[0.01, 0.03],
        cpu_seconds={"load": 0.01, "gateway": 0.1, "Triton": 0.3},
    )
    header, _, *rows, _, conditions = Report(1.0, 2, {"a": [bare], "c": [single]}).markdown().splitlines()
    limit, one = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    assert [cell.strip() for cell in header.split("|")][6:9] == ["CPU: client", "CPU: gateway", "CPU: Triton"]
    assert limit == ["(a) bare processes in a loop", "100", "1.00", "", "", "", "", "", "4.00 ms", "1.00"]
    times = ["0.20 ms", "2.00 ms", "6.00 ms", "8.20 ms"]
    assert one == ["(c) POST /predict, one file", "50", "0.50", "0.50 – 0.50", "10, 30 ms", *times, "0.49"]
    assert conditions == "Rounds: 1 of 1 s each, on 2 cores; others filled 0.0 of them at most."
