"""Fetch a model repository as an archive, check it and unpack it: fetch.py FOLDER, which then has it as `repository`.

MODELS_URL is the archive's address, MODELS_SHA256 its checksum, MODELS_AUTHORIZATION a header where one is needed. The
address is never printed, as it may hold a signature. Needs nothing but Python.
"""

import hashlib
import os
import shutil
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

BLOCK_BYTES = 1 << 20
SILENCE_SECONDS = 60


class SameOrigin(urllib.request.HTTPRedirectHandler):
    """Keeps Authorization on its origin: urllib sends headers to any host, also without encryption."""

    def redirect_request(self, req: urllib.request.Request, *answer: Any) -> urllib.request.Request | None:  # noqa: ANN401
        """The request that follows a redirect."""
        request = super().redirect_request(req, *answer)
        secret = req.unredirected_hdrs.get("Authorization")
        if request is not None and secret and origin(request.full_url) == origin(req.full_url):
            request.add_unredirected_header("Authorization", secret)
        return request


def origin(url: str) -> tuple[str, str | None, int | None]:
    """The scheme, host and port of a URL."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def fetch(folder: Path) -> str:
    """Put the complete repository in place, or nothing. Return a sentence about the fault; "" if there is none."""
    archive, unpacked, repository = folder / "archive", folder / "unpacked", folder / "repository"
    shutil.rmtree(unpacked, ignore_errors=True)
    shutil.rmtree(repository, ignore_errors=True)
    digest = hashlib.sha256()
    try:
        request = urllib.request.Request(os.environ["MODELS_URL"])  # noqa: S310  # an address from the operator
        if secret := os.environ.get("MODELS_AUTHORIZATION"):
            request.add_unredirected_header("Authorization", secret)
        opener = urllib.request.build_opener(SameOrigin)
        with opener.open(request, timeout=SILENCE_SECONDS) as body, archive.open("wb") as file:
            while block := body.read(BLOCK_BYTES):
                digest.update(block)
                file.write(block)
    except urllib.error.HTTPError as error:
        return f"the archive of models cannot be fetched: the server answers {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return f"the archive of models cannot be fetched: {type(error).__name__}"
    if digest.hexdigest() != os.environ["MODELS_SHA256"].lower():
        archive.unlink()
        return f"the archive of models has the SHA-256 {digest.hexdigest()}, not the one in triton.models.bucket.sha256"
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")  # nothing outside the folder, no devices
    except (tarfile.TarError, OSError) as error:
        return f"the archive of models cannot be unpacked: {error}"
    archive.unlink()
    if not any(unpacked.glob("*/config.pbtxt")):
        return "the archive holds no model repository: no MODEL/config.pbtxt at its top"
    unpacked.rename(repository)
    return ""


if __name__ == "__main__":
    sys.exit(fetch(Path(sys.argv[1])) or None)
