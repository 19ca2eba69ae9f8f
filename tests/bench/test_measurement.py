import pytest

from bench.measurement import Measurement, median_ratio, percentile
from bench.report import Report


def rounds(*rates: float) -> list[Measurement]:
    return [Measurement(int(rate * 2), 2.0, [0.1], {"load": 1.0}, 0.5) for rate in rates]


def test_ratio_compares_runs_of_the_same_round():
    # The second and third rounds ran on a machine half as fast.
    assert median_ratio(rounds(50, 25, 25), rounds(100, 50, 50)) == 0.5


def test_percentiles_use_the_nearest_rank():
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99)) == (50, 99, 7)


def test_processor_time_is_reported_per_image():
    (measurement,) = rounds(100)
    assert measurement.cpu_milliseconds() == {"load": 5.0}
    assert (measurement.cores_busy, measurement.others_cores) == (0.5, 0.25)


def test_report_without_the_limit_has_no_shares():
    report = Report(2.0, 2, {"c": rounds(60)})
    assert report.ratio("c") is None
    assert report.rate("c") == 60


def test_report_has_the_shares_of_each_round():
    report = Report(2.0, 2, {"a": rounds(100, 200), "c": rounds(60, 100)})
    assert report.ratio("c") == pytest.approx(0.55)
    assert report.spread("c") == pytest.approx((0.5, 0.6))
