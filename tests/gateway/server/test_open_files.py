"""The limit of open files, and the connections that it leaves."""

import json
import subprocess
import sys

from gateway.limits.connections import RESERVED
from gateway.server.open_files import OWN_FILES
from tests.processes import PROJECT

CONNECTIONS = 20
NEEDED = CONNECTIONS + RESERVED + OWN_FILES
SCRIPT = """
import json, os, resource, sys
from gateway.server.open_files import affordable_connections

for soft, hard in json.loads(sys.argv[2]):
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connections = affordable_connections(int(sys.argv[1]))
        print(json.dumps([soft, hard, connections, *resource.getrlimit(resource.RLIMIT_NOFILE)]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_limit_of_open_files():
    """At the limit, raised to it, one below it, and far below it."""
    cases = [
        # soft limit, hard limit, connections, soft limit afterwards, hard limit
        [NEEDED, NEEDED, CONNECTIONS, NEEDED, NEEDED],
        [NEEDED - 1, NEEDED + 5, CONNECTIONS, NEEDED, NEEDED + 5],
        [NEEDED - 1, NEEDED - 1, CONNECTIONS - 1, NEEDED - 1, NEEDED - 1],
        [64, 64, 1, 64, 64],
    ]
    limits = json.dumps([case[:2] for case in cases])
    command = [sys.executable, "-c", SCRIPT, str(CONNECTIONS), limits]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    assert [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")] == cases
    assert ran.stdout.count("connections_limited") == 2
