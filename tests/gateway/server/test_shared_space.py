"""Space on the disk for what several workers share."""

import os
import shutil
from pathlib import Path

import pytest

from gateway.metrics import SHARED_FOLDER, reserve_space
from gateway.server.workers import METRICS_BYTES, WORKERS_FOLDER, NoSpaceForWorkers, sharing


@pytest.mark.parametrize(("missing", "starts"), [(0, True), (1, False)])
def test_workers_start_only_with_space_for_their_metrics(tmp_path, monkeypatch, missing, starts):
    for variable in (SHARED_FOLDER, WORKERS_FOLDER):
        monkeypatch.setenv(variable, "")
    usage = type("usage", (), {"free": 2 * METRICS_BYTES - missing})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    if starts:
        with sharing(2):
            assert Path(os.environ[SHARED_FOLDER]).is_dir()
    else:
        with pytest.raises(NoSpaceForWorkers, match=r"the metrics of 2 workers need 16 MiB.*TMPDIR"), sharing(2):
            pass


def test_metrics_have_their_blocks_before_the_first_write(tmp_path):
    own, other = tmp_path / f"counter_{os.getpid()}.db", tmp_path / "counter_1.db"
    for path in (own, other):
        with path.open("wb") as file:
            file.truncate(2**20)
    reserve_space(tmp_path)
    assert own.stat().st_blocks * 512 >= 2**20
    assert other.stat().st_blocks == 0
