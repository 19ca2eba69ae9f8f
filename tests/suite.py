"""The whole suite as `make test` runs it: `python -m tests.suite`, with pytest's options for what runs in parallel.

First the tests that may run in parallel, then those marked `alone`. If a few of the first fail, each is run once more
by itself, and the summary lists them: a busy machine does not fail the run, and a fault still does.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

# ruff: noqa: T201 - a command prints

MAX_RETRIED = 5
"""If more tests than this fail, the cause is not a busy machine, and they are not run again."""


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
        """Whether the failed tests are worth running once more by themselves."""
        return not self.others and 0 < len(self.tests) <= MAX_RETRIED


def run(
    beside: Callable[[Failures], int], again: Callable[[Sequence[str]], int], alone: Callable[[], int]
) -> tuple[int, str]:
    """Run the suite; returns its exit code and a summary of the tests that were run again, "" if none.

    `beside`, `again` (of the tests that failed) and `alone` run tests and return pytest's exit code.
    """
    failures = Failures()
    code, summary = beside(failures), ""
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return code, summary  # interrupted, or nothing was run
    if code == pytest.ExitCode.TESTS_FAILED and failures.may_pass_alone:
        names = "\n".join(f"  {name}" for name in failures.tests)
        print(f"\nThese failed beside others and now run again by themselves:\n{names}\n", flush=True)
        code = again(failures.tests)
        outcome = "fail" if code else "pass"
        summary = f"These failed beside others and {outcome} by themselves; please fix them:\n{names}"
    last = alone()
    return code or last, summary


def main(options: Sequence[str]) -> int:
    """Run the suite in the working directory."""

    def beside(failures: Failures) -> int:
        return pytest.main(["-m", "not alone", *options], plugins=[failures])

    def by_themselves(*arguments: str) -> int:
        # In a new process, so that the state of the first run cannot help them.
        return subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], check=False).returncode

    def alone() -> int:
        # Only these files: collecting the others would take longer than running these.
        files = [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if "mark.alone" in path.read_text()]
        return by_themselves("-m", "alone", *files)

    code, summary = run(beside, lambda tests: by_themselves(*tests), alone)
    if summary:
        print(f"\n{summary}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
