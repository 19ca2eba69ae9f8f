"""The command that compares `gateway classify` with one bulk request."""

from bench.bulk import measure
from bench.photos import coffee, unlike_any
from tests.services import stub_service


def test_comparison_prints_a_ratio(capsys):
    with stub_service() as url:
        measure(url, images=20, rounds=2)
    assert "of the throughput of one bulk request" in capsys.readouterr().out


def test_generated_images_are_distinct_jpegs():
    photo = coffee().data
    assert unlike_any(photo) != unlike_any(photo)
    assert unlike_any(photo).startswith(b"\xff\xd8\xff\xfe")
