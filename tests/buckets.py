"""A real S3 server on loopback: rclone's, over a folder."""

import functools
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import botocore.loaders
import pytest

from tests.processes import free_port, listens, wait_for

RCLONE = Path(sysconfig.get_path("scripts")) / "rclone"
KEY, SECRET = "a-key-of-a-test", "a-secret-of-a-test"


@dataclass(frozen=True)
class S3:
    """The server's address, and the folder that has its buckets."""

    url: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which every library of S3 finds the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextmanager
def s3_server(folder: Path, *buckets: str) -> Iterator[S3]:
    """Run the server while the context is open."""
    for bucket in buckets:
        (folder / bucket).mkdir(parents=True)
    port = free_port()
    command = [str(RCLONE), "serve", "s3", f"--addr=127.0.0.1:{port}", f"--auth-key={KEY},{SECRET}", "--config="]
    # Without a cache: tests look at and change the folder too.
    command += ["--vfs-cache-mode=off", "--dir-cache-time=1ms", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: listens(port))
        with pytest.MonkeyPatch.context() as patch:
            # Each client of botocore would read a megabyte of JSON about the service.
            read = functools.cache(botocore.loaders.JSONFileLoader().load_file)
            patch.setattr(botocore.loaders.JSONFileLoader, "load_file", lambda _, path: read(path))
            yield S3(f"http://127.0.0.1:{port}", folder)
    finally:
        process.kill()
        process.wait()
