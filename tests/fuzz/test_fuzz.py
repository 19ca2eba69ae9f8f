import pytest

from tests.fuzz.campaign import Child, run


@pytest.mark.long
def test_ten_thousand_damaged_files_leave_the_process_alive_and_small():
    report = run(files=10_000, seed=20_240_601)
    assert report.faults == []
    assert report.files >= 10_000
    assert report.resident_bytes - report.resident_bytes_at_start < 50 * 2**20


def test_child_that_dies_is_a_fault():
    child = Child()
    child._process.kill()
    assert "died" in child.ask(b"x")
    child.close()
