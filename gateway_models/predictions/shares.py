"""Shares of a number of images, with the intervals in which they lie."""

import math
from dataclasses import dataclass

Z_95 = 1.959963984540054
"""The quantile of the normal distribution for intervals of 95 %."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """A proportion of some images, such as the accuracy."""

    hits: int
    count: int

    @property
    def value(self) -> float | None:
        """The share; None of no images."""
        return self.hits / self.count if self.count else None

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        low, high = wilson(self.hits, self.count)
        return f"{100 * self.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Wilson's score interval of 95 % of a share (E. B. Wilson, JASA 22, 1927); 0 to 1 without observations.

    It stays within 0 and 1, and holds for few images as well.
    """
    if not count:
        return 0.0, 1.0
    share, squared = hits / count, Z_95 * Z_95
    middle = (share + squared / (2 * count)) / (1 + squared / count)
    half = Z_95 * math.sqrt(share * (1 - share) / count + squared / (4 * count * count)) / (1 + squared / count)
    # At the ends the formula gives 0 and 1 but for rounding.
    return (0.0 if hits == 0 else max(0.0, middle - half)), (1.0 if hits == count else min(1.0, middle + half))
