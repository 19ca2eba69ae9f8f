"""docs/guides/prediction-log.md says what is stored: all of it, and nothing else."""

import re

from gateway.api.log_fields import MAX_FIELDS, MAX_FIELDS_BYTES
from gateway.api.routes.feedback import MAX_FEEDBACK_BYTES
from gateway.settings import GIB, Settings
from gateway_predictions import reasons
from gateway_predictions.schema import PREDICTIONS
from tests.processes import PROJECT

GUIDE = (PROJECT / "docs" / "guides" / "prediction-log.md").read_text()


def test_guide_lists_every_column():
    table = GUIDE.partition("| column | content |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(PREDICTIONS.names)


def test_guide_names_every_reason():
    known = {value for name, value in vars(reasons).items() if name.isupper()}
    assert all(f"`{each}`" in GUIDE for each in known)


def test_guide_has_the_limits_and_defaults():
    settings = Settings(_env_file=None)
    assert f"at most {MAX_FIELDS}, {MAX_FIELDS_BYTES:,} bytes" in GUIDE
    assert f"`GATEWAY_LOG_PREDICTIONS_KEEP_DAYS` ({settings.log_predictions_keep_days})" in GUIDE
    assert f"({settings.log_predictions_keep_bytes // GIB} GiB)" in GUIDE
    assert f"at most {MAX_FEEDBACK_BYTES:,} bytes" in (PROJECT / "docs" / "reference" / "http-api.md").read_text()
