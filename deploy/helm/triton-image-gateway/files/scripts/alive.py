"""A liveness probe that has Triton classify an image: alive.py MODEL TIMEOUT_SECONDS [--loaded] [URL].

Ends with 0 when Triton answers the inference, or refuses it for a full queue, which is load and no fault; else with 1
and a sentence. A model that is not loaded, or is being reloaded, needs no restart: the gateway loads it again.

With --loaded it is the startup probe, which sends no image: Triton must be ready and have the model, so that a wrong
name fails the installation, instead of a liveness probe that never fails.
Needs nothing but Python, since NVIDIA's image has no more; where the gateway is installed, `gateway triton alive` asks
the same. The image is noise, which no cache has seen.
"""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request

LOAD = ("Exceeds maximum queue size", "Request timeout expired")
"""Part of Triton's message when its queue is full."""


def post(url: str, body: object, timeout_seconds: float) -> bytes:
    """POST a JSON document and return the response."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:  # noqa: S310  # the address is the probe's own
        return answer.read()


def inference() -> object:
    """An inference of one image of 16 × 16 pixels, as uncompressed PPM, in the Open Inference Protocol."""
    image = b"P6 16 16 255\n" + os.urandom(16 * 16 * 3)
    return {
        "inputs": [
            {"name": "RAW_IMAGE", "datatype": "UINT8", "shape": [1, len(image)], "data": list(image)},
            {"name": "RAW_IMAGE_LENGTH", "datatype": "INT32", "shape": [1, 1], "data": [len(image)]},
        ]
    }


def start_fault(model: str, timeout_seconds: float, url: str) -> str:
    """What is missing for a start, as a sentence; "" if nothing is."""
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=timeout_seconds):  # noqa: S310  # the probe's own
            pass
        models = json.loads(post(f"{url}/v2/repository/index", {}, timeout_seconds))
    except urllib.error.HTTPError as error:
        return f"Triton is not ready: {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return f"Triton does not answer: {error}"
    found = [each for each in models if each["name"] == model]
    if not found:
        names = ", ".join(sorted({each["name"] for each in models}))
        return f"Triton has no model {model}: set triton.probes.model to an ensemble's name; it has {names or 'none'}"
    if not any(each.get("state") == "READY" for each in found):
        reasons = "; ".join(filter(None, (each.get("reason", "") for each in found)))
        return f"Triton has not loaded the model {model}: {reasons or 'no reason is given'}"
    return ""


def fault(model: str, timeout_seconds: float, url: str) -> str:
    """A sentence about the fault; "" if there is none."""
    try:
        ready = json.loads(post(f"{url}/v2/repository/index", {"ready": True}, timeout_seconds))
        if any(each["name"] == model for each in ready):
            post(f"{url}/v2/models/{model}/infer", inference(), timeout_seconds)
    except urllib.error.HTTPError as error:
        said = error.read(2000).decode(errors="replace")
        return "" if any(words in said for words in LOAD) else f"Triton answers {error.code}: {said}"
    except (OSError, http.client.HTTPException) as error:
        return f"Triton does not answer within {timeout_seconds:g} s: {error}"
    return ""


if __name__ == "__main__":
    _, MODEL, TIMEOUT, *REST = sys.argv
    URL = [word for word in REST if word != "--loaded"] or ["http://127.0.0.1:8000"]
    find_fault = start_fault if "--loaded" in REST else fault
    sys.exit(find_fault(MODEL, float(TIMEOUT), URL[0]) or None)
