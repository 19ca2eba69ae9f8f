"""Changes a module in many small ways (mutmut), and reports the changes that none of its tests notices.

`make mutants MODULE=gateway/limits/admission.py`: each surviving change is a missing assertion, or makes no difference.
It runs in a copy below `build/mutants/`, which a second run continues: it tries again what survived. Only the module's
own tests run, without Triton.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
COPIED = ("gateway", "tests", "pyproject.toml")
LINKED = ("triton_models", "triton_backends", "bench", "docs", "deploy", "examples", "README.md")
LIMITS, INGEST, INFERENCE = "tests/gateway/limits", "tests/gateway/ingest", "tests/gateway/inference"
BATCHING = tuple(f"{INFERENCE}/test_{name}.py" for name in ("batching", "service"))
TESTS = {
    "gateway/limits/admission.py": (
        *(f"{LIMITS}/test_{name}.py" for name in ("admission", "fair_share")),
        "tests/gateway/inference/test_service.py",
        "tests/plugins/rollouts/test_spare_capacity.py",
    ),
    "gateway/limits/lease.py": tuple(f"{LIMITS}/test_{name}.py" for name in ("lease", "pools", "fair_share")),
    "gateway/ingest/inspection.py": tuple(
        f"{INGEST}/test_{name}.py" for name in ("inspection", "costly_headers", "decode_policy")
    ),
    "gateway/ingest/multipart.py": (f"{INGEST}/test_multipart.py", "tests/gateway/api/test_limits.py"),
    "gateway/ingest/part_headers.py": (f"{INGEST}/test_multipart.py",),
    "gateway/inference/batching.py": BATCHING,
    "gateway/inference/queues.py": BATCHING,
}
"""The test files of modules that have more than the one of their own name."""
SETTINGS = """
[tool.mutmut]
source_paths = ["gateway"]
only_mutate = ["{module}"]
pytest_add_cli_args = ["-n0", "-m", "not triton and not slow and not long and not alone", "--timeout=10"]
pytest_add_cli_args_test_selection = {tests}
use_git_change_detection = false
process_isolation = "forkserver"
"""
"""The fork server has run no test: what is cached in the process would hide a change."""


def copy(module: str, tests: list[str]) -> Path:
    """The folder of a module's copy, with the newest files."""
    folder = PROJECT / "build" / "mutants" / module.removesuffix(".py").replace("/", ".")
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKED:
        if not (folder / name).exists():
            (folder / name).symlink_to(PROJECT / name)
    settings = (PROJECT / "pyproject.toml").read_text() + SETTINGS.format(module=module, tests=tests)
    (folder / "pyproject.toml").write_text(settings)
    return folder


def main() -> int:
    """Run mutmut, and print the changes that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="a file of gateway/, such as gateway/limits/admission.py")
    parser.add_argument("tests", nargs="*", help="its test files")
    options = parser.parse_args()
    module = Path(options.module)
    own = str("tests" / module.parent / f"test_{module.name}")
    tests = options.tests or list(TESTS.get(options.module, (own,)))
    if missing := [name for name in tests if not (PROJECT / name).exists()]:
        parser.error(f"there is no {', '.join(missing)}: name the module's test files after it")
    folder = copy(options.module, tests)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def mutmut(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
        return subprocess.run(command, cwd=folder, env=environment, check=True, text=True, **options)

    def surviving() -> list[str]:
        lines = mutmut("results", stdout=subprocess.PIPE).stdout.splitlines()
        return [line.split(":")[0].strip() for line in lines if not line.endswith("not checked")]

    run = ("run", "--max-children", "1")
    before = surviving() if (folder / "mutants").exists() else []
    mutmut(*run)
    if again := sorted({*before}.intersection(surviving())):
        mutmut(*run, *again)
    for name in surviving():
        mutmut("show", name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
