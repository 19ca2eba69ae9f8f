"""Writers of the prediction log that are forks of a process which has imported pyarrow: each takes a second less."""

import json
import os
import socket
import subprocess
from dataclasses import asdict
from typing import cast

from gateway_predictions.writer import WriterOptions
from tests import warm

PROGRAM = """
import os, sys
from gateway_predictions.writer import main

os.setsid()
main("0", sys.argv[1])
"""


def start(connection: socket.socket, options: WriterOptions) -> "subprocess.Popen[bytes]":
    """As `gateway_predictions.writer.start`, but the writer is no child of this process."""
    with open(os.devnull, "w") as ignored:  # noqa: PTH123
        started = warm.start(
            PROGRAM,
            [json.dumps(asdict(options))],
            environment=os.environ,
            stdin=connection.fileno(),
            stdout=ignored.fileno(),
            stderr=ignored.fileno(),
        )
    return cast("subprocess.Popen[bytes]", started)
