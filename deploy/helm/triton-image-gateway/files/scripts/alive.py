"""A liveness probe that has Triton classify an image: alive.py MODEL TIMEOUT_SECONDS [URL].

Ends with 0 when Triton answers the inference, or refuses it for a full queue, which is load and no fault; else with 1
and a sentence. Needs nothing but Python, since NVIDIA's image has no more. The image is noise, which no cache has seen.
"""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request

LOAD = ("Exceeds maximum queue size", "Request timeout expired")
"""How Triton words that it has too much to do."""


def request(model: str, url: str) -> urllib.request.Request:
    """An inference of one image of 16 × 16 pixels, as uncompressed PPM, in the Open Inference Protocol."""
    image = b"P6 16 16 255\n" + os.urandom(16 * 16 * 3)
    body = {
        "inputs": [
            {"name": "RAW_IMAGE", "datatype": "UINT8", "shape": [1, len(image)], "data": list(image)},
            {"name": "RAW_IMAGE_LENGTH", "datatype": "INT32", "shape": [1, 1], "data": [len(image)]},
        ]
    }
    return urllib.request.Request(  # noqa: S310  # the address is the probe's own
        f"{url}/v2/models/{model}/infer", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )


def fault(model: str, timeout_seconds: float, url: str) -> str:
    """What is wrong, in a sentence; empty where nothing is."""
    try:
        with urllib.request.urlopen(request(model, url), timeout=timeout_seconds) as answer:  # noqa: S310
            answer.read()
    except urllib.error.HTTPError as error:
        said = error.read(2000).decode(errors="replace")
        return "" if any(words in said for words in LOAD) else f"Triton answers {error.code}: {said}"
    except (OSError, http.client.HTTPException) as error:
        return f"Triton does not answer within {timeout_seconds:g} s: {error}"
    return ""


if __name__ == "__main__":
    _, MODEL, TIMEOUT, *URL = sys.argv
    sys.exit(fault(MODEL, float(TIMEOUT), URL[0] if URL else "http://127.0.0.1:8000") or None)
