"""Checks of the Dockerfile that need no engine: its lint, and the programs that it copies."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from tests.processes import PROJECT, python


def test_hadolint_finds_nothing():
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    completed = subprocess.run(
        [hadolint, "--no-color", "--failure-threshold=style", "Dockerfile"], cwd=PROJECT, capture_output=True, text=True
    )
    assert (completed.returncode, completed.stdout) == (0, "")


def test_gpu_image_has_what_sizes_its_models(tmp_path):
    """Run by an interpreter without packages, as NVIDIA's image has none of the project's dependencies."""
    for copy in re.findall(r"^COPY (.* /opt/sized.*)$", (PROJECT / "Dockerfile").read_text(), re.MULTILINE):
        *sources, target = copy.split()
        place = tmp_path / target.removeprefix("/opt/sized").lstrip("/")
        for source in sources:
            to = place / Path(source).name if target.endswith("/") else place
            to.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (PROJECT / source).is_dir() else shutil.copyfile)(PROJECT / source, to)
    done = python("-I", "-S", tmp_path, "tritonserver", code=1)
    assert "tritonserver's --model-repository is missing" in done.stderr
