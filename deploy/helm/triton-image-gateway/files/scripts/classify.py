"""The check of `helm test`: the gateway classifies an image. The argument is the gateway's address."""

import json
import os
import struct
import sys
import time
import urllib.error
import urllib.request
import zlib

DEADLINE_SECONDS = 120


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none, so that the API key goes to the gateway alone: a redirect is an HTTPError."""

    def redirect_request(self, *_: object) -> None:
        """No request."""
        return


def ask(url: str, body: bytes | None = None) -> bytes:
    """A GET, or the POST of an image."""
    headers = {"Content-Type": "image/png"} if body else {}
    if key := os.environ.get("GATEWAY_API_KEY"):
        headers["X-API-Key"] = key
    opener = urllib.request.build_opener(NoRedirects)
    with opener.open(urllib.request.Request(url, body, headers), timeout=30) as answer:  # noqa: S310
        return answer.read()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture() -> bytes:
    """A PNG of noise, 32 × 32."""
    rows = b"".join(b"\0" + os.urandom(32 * 3) for _ in range(32))
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def main(url: str) -> str:
    """Return a sentence about the fault; "" if there is none."""
    end = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            ask(f"{url}/health/ready")
            break
        except OSError as error:  # an HTTPError is one, too
            if time.monotonic() > end:
                return f"the gateway at {url} is not ready: {error}"
            time.sleep(2)
    if os.environ.get("ONLY_READY"):
        print("ready; no image was sent, since there is no API key: set test.apiKeySecretName")  # noqa: T201
        return ""
    try:
        (result,) = json.loads(ask(f"{url}/predict", picture()))["results"]
    except urllib.error.HTTPError as error:
        return f"POST /predict answers {error.code}: {error.read(2000).decode(errors='replace')}"
    print(result)  # noqa: T201
    return "" if result["status"] == "ok" and result["predictions"] else "no prediction"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) or None)
