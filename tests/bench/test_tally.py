import json

import pytest

from bench.report import Report
from bench.tally import Tally, median_ratio, percentile


def rounds(*rates: float) -> list[Tally]:
    return [Tally(int(rate * 2), 2.0, [0.1], {"load": 1.0}, 0.5) for rate in rates]


def test_ratio_compares_runs_of_the_same_round():
    # The second and third rounds ran on a machine half as fast.
    assert median_ratio(rounds(50, 25, 25), rounds(100, 50, 50)) == 0.5


def test_percentiles_use_the_nearest_rank():
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99)) == (50, 99, 7)


def test_processor_time_is_reported_per_image():
    (tally,) = rounds(100)
    assert tally.cpu_milliseconds() == {"load": 5.0}
    assert (tally.cores_busy, tally.others_cores) == (0.5, 0.25)


def test_report_has_shares_of_the_limit_and_a_plot(tmp_path):
    report = Report({"model": "a model", "cores": 2}, {"a": rounds(100, 200), "c": rounds(60, 100)})
    written, plot = report.save(tmp_path / "new", "name")
    parts = json.loads(written.read_text())["parts"]
    assert parts["c"]["ratio_to_limit"] == pytest.approx(0.55)
    assert parts["c"]["ratio_spread"] == pytest.approx([0.5, 0.6])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_report_without_the_limit_has_no_shares():
    report = Report({"model": "a model", "cores": 2}, {"c": rounds(60)})
    assert report.ratio("c") is None
    assert report.rate("c") == 60
