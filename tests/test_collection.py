"""What importing the tests loads: each worker imports every test module before it runs its share."""

import subprocess
import sys

import pytest

from tests import affected

HEAVY = ("torch", "onnx", "onnxruntime", "sklearn", "skimage", "matplotlib", "jsonschema")
CODE = f"""
import sys, pytest

code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]])
sys.exit(" ".join(name for name in {HEAVY} if name in sys.modules) or code)
"""


@pytest.mark.slow
def test_files_of_make_check_import_neither_torch_nor_what_takes_as_long():
    sources = {path: (affected.PROJECT / path).read_text() for path in affected.git("ls-files", "*.py")}
    files = affected.distances(["tests/conftest.py"], sources)
    assert len(files) > 100
    run = subprocess.run(
        [sys.executable, "-c", CODE, *files], cwd=affected.PROJECT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-1000:]
