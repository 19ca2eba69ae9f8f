"""Keeps the label of a stream steady."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.inference.selection import Selection
from gateway.plugins.streams.messages import predictions_of


class HeldLabel:
    """The first class of a sequence, which stays first until another one leads by a margin."""

    def __init__(self) -> None:
        self._class_id: int | None = None

    def predictions(
        self,
        scores: NDArray[np.float32],
        labels: Sequence[str],
        selection: Selection,
        margin: float,
        *,
        multi_label: bool,
    ) -> list[dict[str, Any]]:
        """The best classes of the sequence's scores, fp32 [classes], after the held one; as `predictions_of`."""
        best, held = predictions_of(scores, labels, selection, multi_label=multi_label), self._class_id
        if best and held is not None and held < len(scores) and scores[best[0]["class_id"]] - scores[held] < margin:
            best = predictions_of(scores, labels, selection, multi_label=multi_label, first=held)
        self._class_id = best[0]["class_id"] if best else None
        return best
