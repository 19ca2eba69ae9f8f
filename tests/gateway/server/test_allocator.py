"""Memory that the allocator keeps."""

import os
import subprocess
import sys

import pytest

from gateway.server.allocator import VARIABLES

FAULTS = """
import resource
data = b"x"
from gateway.server.allocator import keep_freed_memory
kept = {call}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [data * 4_000_000 for _ in range(10)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(kept, faults())
"""


def run(call: str, **variables: str) -> tuple[str, int]:
    """Whether the memory is kept, and the page faults of 20 times 40 MB."""
    program = FAULTS.format(call=call)
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **variables}, capture_output=True, text=True
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_buffers_of_megabytes_cost_no_page_faults():
    assert run("None")[1] > 20_000
    kept, faults = run("keep_freed_memory()")
    assert kept == "True"
    assert faults < 100


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_the_operator_win(name):
    assert run("keep_freed_memory()", **{name: "131072"})[0] == "False"
