"""Builds the client's wheel by setuptools: setup.py for every distribution of the gateway, the page in a checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

FIRST_DATE = "315532800"
"""1980-01-01, the earliest date of a zip archive's member: equal files make equal wheels."""
BUILD = "import sys, setuptools.build_meta; setuptools.build_meta.build_wheel(sys.argv[1])"


def build_client(source: Path, target: Path) -> Path:
    """Build the wheel of the folder `gateway_client` into `target`; raises CalledProcessError.

    A copy is built, since setuptools writes into the folder that it builds. The running Python needs setuptools.
    """
    with TemporaryDirectory() as folder:
        copy = Path(folder, "gateway_client")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        environment = {**os.environ, "SOURCE_DATE_EPOCH": FIRST_DATE}
        command = [sys.executable, "-c", BUILD, str(target.resolve())]
        subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True, text=True)
    (wheel,) = target.glob("triton_image_gateway_client-*.whl")
    return wheel
