import pytest

from bench.measurement import Measurement, Series, in_turns, percentile


def rounds(*rates: float) -> Series:
    return Series(Measurement(int(rate * 2), 2.0, [0.1], {"load": 1.0}, 0.5) for rate in rates)


def test_ratio_compares_measurements_of_the_same_round():
    """The second and third rounds ran on a machine half as fast."""
    ratio = rounds(50, 25, 30).ratio(rounds(100, 50, 50))
    assert (ratio.median, ratio.least, ratio.most) == (0.5, 0.5, 0.6)
    assert str(ratio) == "0.50 (0.50 – 0.60)"


def test_percentiles_use_the_nearest_rank():
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99)) == (50, 99, 7)


def test_processor_time_is_reported_per_image():
    (measurement,) = rounds(100)
    assert measurement.cpu_milliseconds("load") == measurement.cpu_milliseconds() == 5.0
    assert measurement.cpu_milliseconds("gateway") == 0.0
    assert measurement.others_cores == 0.25


def test_every_second_round_goes_through_the_subjects_in_reverse():
    order = []

    def subject(name: str):
        def measure(seconds: float) -> Measurement:
            order.append(name)
            return Measurement(1, seconds)

        return measure

    measured = in_turns({"a": subject("a"), "b": subject("b")}, 1.0, 3, lambda _: None)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(series) for name, series in measured.items()} == {"a": 3, "b": 3}


@pytest.mark.parametrize(("quiet", "attempts"), [(None, 2), (0.5, 3)])
def test_disturbed_round_is_measured_again(quiet: float | None, attempts: int):
    """Other processes keep two cores busy during the first measurement."""
    others = iter([2.0, 0.1, 0.1])
    measured = in_turns(
        {"a": lambda seconds: Measurement(1, seconds, others_cpu_seconds=next(others))}, 1.0, 2, lambda _: None, quiet
    )
    assert len(measured["a"]) == 2
    assert len(list(others)) == 3 - attempts
