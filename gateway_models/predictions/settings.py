"""The settings of the prediction log."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from gateway.settings import GIB, MIB, Allowed, Section
from gateway.values.setting_values import if_text, listed, unless_none
from gateway_models.predictions.layout import DISAGREEMENT, ERROR, LOW_SCORE

QUEUE_BYTES = 64 * MIB
"""Bytes of results and images of one process that may wait to be written: some seconds of a slow disk or bucket."""
FILE_ROWS, FILE_BYTES, FILE_SECONDS = 10_000, 32 * MIB, 60.0
"""A file is written after this many rows, bytes of rows and images, or seconds, whichever comes first: files are large
enough to be read quickly, and a process that is killed loses a minute of its rows at most."""
PACKAGES_BYTES = 64 * MIB
"""Memory of PyArrow and fsspec in each process."""

_BELOW = re.compile(rf"({LOW_SCORE})\s*<\s*(0?\.\d+|1|1\.0*)")
NO_RULES = "none"


def rules_of(text: str) -> dict[str, float]:
    """Parse rules: the reason of each, and the bound of its score (1 for rules without a bound)."""
    found: dict[str, float] = {}
    for part in listed(text) if text.strip() != NO_RULES else ():
        match = _BELOW.fullmatch(part)
        if match is None and part not in {DISAGREEMENT, ERROR}:
            msg = f"{part!r} is not a rule: use {NO_RULES}, or a list such as score<0.5,disagreement,error"
            raise ValueError(msg)
        reason, bound = (match[1], float(match[2])) if match else (part, 1.0)
        if reason in found:
            msg = f"{reason!r} is named twice"
            raise ValueError(msg)
        found[reason] = bound
    return found


def log_url(url: str) -> str:
    """Check the place of the prediction log: a folder, or a bucket."""
    scheme, separator, rest = url.partition("://")
    if not url.strip() or (separator and not (scheme and rest)):
        msg = "must be a folder, or a bucket such as s3://bucket/log"
        raise ValueError(msg)
    return url


class PredictionLogSettings(Section):
    """The prediction log."""

    log_predictions: Annotated[
        str | None, Allowed("a folder, or the URL of a bucket"), AfterValidator(unless_none(log_url))
    ] = None
    """Folder or bucket (s3://…) of the prediction log. Needs the extra log."""
    log_predictions_share: float = Field(1.0, ge=0, le=100)
    """Percentage of images that are logged at random."""
    log_predictions_rules: Annotated[
        dict[str, float],
        NoDecode,
        Allowed("none, or a list of score<NUMBER, disagreement and error"),
        BeforeValidator(if_text(rules_of)),
    ] = Field({DISAGREEMENT: 1.0, ERROR: 1.0})
    """Results that are always logged (docs/guides/prediction-log.md)."""
    log_predictions_images: bool = False
    """Whether the images are stored."""
    log_predictions_keep_days: int = Field(30, ge=0, le=36_500)
    """Days after which rows and images are deleted; 0 for never. Not in a bucket."""
    log_predictions_keep_bytes: int = Field(10 * GIB, ge=0, le=1_024 * 1_024 * GIB)
    """Bytes above which the oldest days are deleted; 0 for no limit. Not in a bucket."""

    def process_bytes(self) -> int:
        """The packages, the queue, and the file that is made of a part of it."""
        return 0 if self.log_predictions is None else PACKAGES_BYTES + QUEUE_BYTES + FILE_BYTES
