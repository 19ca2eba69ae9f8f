"""docs/guides/prediction-log.md lists all stored columns, and no others."""

import re

from gateway_models.predictions.layout import DISAGREEMENT, ERROR, LOW_SCORE, SAMPLE
from gateway_models.predictions.schema import PREDICTIONS
from tests.processes import PROJECT

GUIDE = (PROJECT / "docs" / "guides" / "prediction-log.md").read_text()


def test_guide_lists_every_column():
    table = GUIDE.partition("| column | content |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(PREDICTIONS.names)


def test_guide_names_every_reason():
    assert all(f"`{each}`" in GUIDE for each in (SAMPLE, LOW_SCORE, DISAGREEMENT, ERROR))
