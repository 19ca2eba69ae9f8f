"""Changes a module in many small ways (mutmut), and reports the changes that none of its tests notices.

`make mutants MODULE=gateway/limits/admission.py`: each surviving change is a missing assertion, or makes no difference.
It runs in a copy below `build/mutants/`, which a second run continues; only the module's own tests run, without Triton.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
COPIED = ("gateway", "tests", "pyproject.toml")
LINKED = ("triton_models", "triton_backends", "bench", "docs", "deploy", "examples", "README.md")
LIMITS, INGEST = "tests/gateway/limits", "tests/gateway/ingest"
TESTS = {
    "gateway/limits/admission.py": (
        *(f"{LIMITS}/test_{name}.py" for name in ("admission", "fair_share")),
        "tests/gateway/inference/test_uncancelled.py",
        "tests/plugins/rollouts/test_spare_capacity.py",
    ),
    "gateway/limits/lease.py": tuple(
        f"{LIMITS}/test_{name}.py" for name in ("lease", "pools", "round_robin", "fair_share")
    ),
    "gateway/ingest/inspection.py": (f"{INGEST}/test_inspection.py", f"{INGEST}/test_costly_headers.py"),
}
"""The test files of modules that have more than the one of their own name."""
SETTINGS = """
[tool.mutmut]
source_paths = ["gateway"]
only_mutate = ["{module}"]
pytest_add_cli_args = ["-n0", "-m", "not triton and not slow and not long and not alone", "--timeout=15"]
pytest_add_cli_args_test_selection = {tests}
use_git_change_detection = false
"""


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
    mutmut = [str(Path(sys.executable).with_name("mutmut"))]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([*mutmut, "run", "--max-children", "1"], cwd=folder, env=environment, check=True)
    results = subprocess.check_output([*mutmut, "results"], cwd=folder, env=environment, text=True)
    for line in results.splitlines():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        subprocess.run([*mutmut, "show", line.partition(":")[0].strip()], cwd=folder, env=environment, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
