"""docs/guides/prediction-log.md says what is stored: all of it, and nothing else."""

import re

from gateway_predictions.layout import DISAGREEMENT, ERROR, LOW_MARGIN, LOW_SCORE, SAMPLE
from gateway_predictions.schema import PREDICTIONS
from tests.processes import PROJECT

GUIDE = (PROJECT / "docs" / "guides" / "prediction-log.md").read_text()


def test_guide_lists_every_column():
    table = GUIDE.partition("| column | content |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(PREDICTIONS.names)


def test_guide_names_every_reason():
    assert all(f"`{each}`" in GUIDE for each in (SAMPLE, LOW_SCORE, LOW_MARGIN, DISAGREEMENT, ERROR))


def test_guide_has_the_limits_and_defaults():
    settings = Settings(_env_file=None)
    assert f"`GATEWAY_LOG_PREDICTIONS_KEEP_DAYS` ({settings.log_predictions_keep_days})" in GUIDE
    assert f"({settings.log_predictions_keep_bytes // GIB} GiB)" in GUIDE
    assert f"at most {MAX_FEEDBACK_BYTES:,} bytes" in (PROJECT / "docs" / "reference" / "http-api.md").read_text()


def test_guide_of_drift_has_the_limits():
    guide = (PROJECT / "docs" / "guides" / "prediction-log.md").read_text()
    assert f"at most {MOST_IMAGES:,} images on each side, and at least {LEAST_IMAGES}" in guide
    assert f"the {MOST_NAMES} most frequent ones" in guide
    assert f"An alarm is a distance of at least {LEAST_DISTANCE:g}" in guide
    assert f"at most {100 * (1 - CONFIDENCE):.0f} % of windows without drift" in guide
    assert f"from at least {STORED_IMAGES} images" in guide
    assert all(f"`{name}`" in guide for name in PROPERTIES)
    assert f"0 without drift, {DRIFTED} with drift" in guide
