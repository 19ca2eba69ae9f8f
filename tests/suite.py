"""The whole suite as `make test` runs it: `python -m tests.suite`, with pytest's options for what runs in parallel.

First the tests that may run beside others, then those marked `alone`. Where a few of the first fail, each is tried once
more by itself, and the end says which: a machine that was busy loses no run, and a fault still fails.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

# ruff: noqa: T201 - a command prints

MOST_AGAIN = 5
"""If more tests than these fail, it is not for want of quiet."""


class Failures:
    """A plugin of pytest that notes which tests failed, and whether anything else went wrong."""

    def __init__(self) -> None:
        self.tests: list[str] = []
        self.others = False
        """Whether a worker crashed or a file could not be collected: then tests are missing from the run."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.others = self.others or report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        self.others = self.others or error is not None

    @property
    def may_pass_alone(self) -> bool:
        """Whether it is worth trying them once more."""
        return not self.others and 0 < len(self.tests) <= MOST_AGAIN


def run(
    beside: Callable[[Failures], int], again: Callable[[Sequence[str]], int], alone: Callable[[], int]
) -> tuple[int, str]:
    """Run the suite; returns its exit code and what is to be said at the end.

    `beside`, `again` (of the tests that failed) and `alone` run tests and return pytest's exit code.
    """
    failures = Failures()
    code, told = beside(failures), ""
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return code, told  # interrupted, or nothing was run
    if code == pytest.ExitCode.TESTS_FAILED and failures.may_pass_alone:
        names = "\n".join(f"  {name}" for name in failures.tests)
        print(f"\nThese failed beside others and are now tried by themselves:\n{names}\n", flush=True)
        code = again(failures.tests)
        how = "fail" if code else "pass"
        told = f"These failed beside others and {how} by themselves; please mend them:\n{names}"
    last = alone()
    return code or last, told


def main(options: Sequence[str]) -> int:
    """Run the suite in the working directory."""

    def beside(failures: Failures) -> int:
        return pytest.main(["-m", "not alone", *options], plugins=[failures])

    def by_themselves(*arguments: str) -> int:
        # In a new process: what is left of the first run in this one shall not help them.
        return subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], check=False).returncode

    def alone() -> int:
        # Only these files: to collect the others would take longer than to run these.
        files = [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if "mark.alone" in path.read_text()]
        return by_themselves("-m", "alone", *files)

    code, told = run(beside, lambda tests: by_themselves(*tests), alone)
    if told:
        print(f"\n{told}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
