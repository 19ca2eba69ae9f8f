"""The suite's runner: failures on a busy machine are retried, and faults fail the run."""

import re
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.processes import PROJECT
from tests.suite import MAX_RETRIED, Failures, run

OK, FAILED, INTERRUPTED, USAGE = 0, 1, 2, 4


class Scripted:
    """Scripted exit codes of the three runs of pytest, and a record of the runs that took place."""

    def __init__(self, *failed: str, others: bool = False, beside: int = FAILED, again: int = OK, alone: int = OK):
        self.failed, self.others, self.codes = failed, others, (beside, again, alone)
        self.began: list[object] = []

    def beside(self, failures: Failures) -> int:
        failures.tests.extend(self.failed)
        failures.others = self.others
        return self.codes[0]

    def again(self, tests: Sequence[str]) -> int:
        self.began.append(list(tests))
        return self.codes[1]

    def alone(self) -> int:
        self.began.append("alone")
        return self.codes[2]

    def run(self) -> tuple[int, str]:
        return run(self.beside, self.again, self.alone)


def test_passing_tests_are_not_run_again():
    suite = Scripted(beside=OK)
    assert suite.run() == (OK, "")
    assert suite.began == ["alone"]


def test_flaky_test_is_reported_and_does_not_fail_the_run(capsys):
    suite = Scripted("tests/a.py::one", "tests/b.py::two")
    code, summary = suite.run()
    assert code == OK
    assert summary == (
        "These failed beside others and pass by themselves; please fix them:\n  tests/a.py::one\n  tests/b.py::two"
    )
    assert suite.began == [["tests/a.py::one", "tests/b.py::two"], "alone"]
    assert "now run again by themselves:\n  tests/a.py::one" in capsys.readouterr().out


@pytest.mark.parametrize(
    "suite",
    [
        pytest.param(Scripted("one", again=FAILED), id="one that fails by itself as well"),
        pytest.param(Scripted("one", again=USAGE), id="one that is not found by its name"),
        pytest.param(Scripted(*map(str, range(MAX_RETRIED + 1))), id="many"),
        pytest.param(Scripted("one", others=True), id="one beside a crash"),
        pytest.param(Scripted(), id="none, and a failure all the same"),
        pytest.param(Scripted(beside=OK, alone=FAILED), id="one that runs alone"),
        pytest.param(Scripted("one", alone=FAILED), id="one that runs alone, and one that is reported"),
    ],
)
def test_failure_fails_the_run_but_last_tests_still_run(suite):
    code, _ = suite.run()
    assert code != OK
    assert suite.began[-1] == "alone"


@pytest.mark.parametrize("code", [INTERRUPTED, USAGE])
def test_interrupted_run_is_not_repeated(code):
    suite = Scripted("one", beside=code)
    assert suite.run() == (code, "")
    assert suite.began == []


FILES = {
    "test_a.py": """
import pathlib, os
def test_that_needs_quiet():
    met = pathlib.Path("met")
    assert met.exists() or met.touch()
def test_of_ids_with_blanks(): pass
""",
    "test_c.py": "import pytest\n@pytest.mark.alone\ndef test_last(): pass\n",
}
CRASH = "import os\ndef test_crash(): os.kill(os.getpid(), 9)\n"
NO_MODULE = "import nothing_such\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "code", "runs"),
    [(None, OK, 3), (CRASH, FAILED, 2), (NO_MODULE, FAILED, 2)],
    ids=["nothing", "a crash", "a file that cannot be imported"],
)
def test_pytest_reports_the_needed_fields(tmp_path, broken, code, runs):
    folder = tmp_path / "tests"
    folder.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\npythonpath = .\naddopts = -p no:schemathesis\n")
    for name, text in FILES.items() | ({"test_b.py": broken}.items() if broken else set()):
        (folder / name).write_text(text)
    program = (
        f"import sys; sys.path.append({str(PROJECT)!r}); from tests.suite import main; sys.exit(main(sys.argv[1:]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, "-q", "-n", "1", "--dist", "loadfile", "--max-worker-restart", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert len(re.findall(r"^\d.* in [\d.]+s$", ran.stdout, re.MULTILINE)) == runs, ran.stdout
    assert ("pass by themselves; please fix them:\n  tests/test_a.py::test_that_needs_quiet" in ran.stdout) is (
        not broken
    )
