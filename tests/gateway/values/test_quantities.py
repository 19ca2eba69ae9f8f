"""Quantities in messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.values.quantities import pixels, pixels_beyond, size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (2_000, "2 kB"),
        (2_001, "2,001 bytes"),
        (8 * 2**10, "8 KiB"),
        (20 * 2**20, "20 MiB"),
        (15_000_000, "15 MB"),
        (15_000_001, "14.3 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (5_000 * 2**30, "5,000 GiB"),
    ],
)
def test_bytes_have_the_largest_unit_that_fits(nbytes: int, text: str):
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1_200, "1,200 pixels"),
        (1_000_000, "1 megapixel"),
        (1_000_001, "1.1 megapixels"),
        (108_000_000, "108 megapixels"),
        (2_500_000_000, "2,500 megapixels"),
    ],
)
def test_pixels_have_one_decimal(number: int, text: str):
    assert pixels(number) == text


def test_limit_of_few_pixels_is_exact():
    assert pixels_beyond(2_000_000, 999_999) == ("2,000,000 pixels", "999,999")


@given(st.integers(1, 10**10), st.integers(1, 10**9))
def test_what_exceeds_a_limit_reads_as_more(most: int, more: int):
    found, allowed = pixels_beyond(most + more, most)
    assert _number(found.split()[0]) > _number(allowed)


def _number(text: str) -> float:
    return float(text.replace(",", ""))
