"""Which logged images are worth a label: the most uncertain, and among those the most different."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway_predictions.reader import Row

CANDIDATES = 4
"""Uncertain images among which each chosen one is found, by their embeddings."""
Embeddings = NDArray[np.float32]


CERTAINTY: dict[str, Callable[[Row], float]] = {
    # Two classes with similar scores; a result with one class has no margin, and is certain.
    "margin": lambda row: 1.0 if row["margin"] is None else float(row["margin"]),
    "entropy": lambda row: -float(row["entropy"] or 0.0),
    "score": lambda row: float(row["scores"][0]),
}


def most_uncertain(rows: Sequence[Row], count: int, by: str = "margin", *, diverse: bool = True) -> list[Row]:
    """The `count` rows that are worth a label, each image once, the most uncertain first.

    If all rows have embeddings of one size and `diverse`, they are `count` of the CANDIDATES × `count` most uncertain
    ones, chosen so that each of those is near to one of them.
    """
    certainty = CERTAINTY[by]
    once: dict[str, Row] = {}
    for row in sorted((row for row in rows if row["class_ids"]), key=certainty):
        once.setdefault(row["sha256"], row)
    candidates = list(once.values())[: count * (CANDIDATES if diverse else 1)]
    sizes = {len(row["embedding"] or ()) for row in candidates}
    if not diverse or len(candidates) <= count or len(sizes) != 1 or sizes == {0}:
        return candidates[:count]
    chosen = k_center(np.array([row["embedding"] for row in candidates], np.float32), count)
    return [candidates[position] for position in sorted(chosen)]


def k_center(embeddings: Embeddings, count: int) -> list[int]:
    """Positions of `count` embeddings, fp32 [rows, size], beginning with the first, each the farthest from all before.

    The greedy algorithm for the k-center problem (Gonzalez 1985), whose radius is at most twice the smallest one; in
    active learning: core-set selection (Sener and Savarese 2018). Lengths do not count, only directions.
    """
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = embeddings / np.where(lengths > 0, lengths, 1)
    chosen = [0]
    nearest = 1 - unit @ unit[0]
    while len(chosen) < min(count, len(unit)):
        nearest[chosen] = -1.0
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, 1 - unit @ unit[chosen[-1]])
    return chosen
