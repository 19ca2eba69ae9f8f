"""A liveness probe that has Triton run a model: alive.py MODEL TIMEOUT_SECONDS [--loaded] [URL].

Ends with 0 when Triton answers the inference, or refuses it for a full queue, which is load and no fault; else with 1
and a sentence. A model that is not loaded, or is being reloaded, needs no restart: the gateway loads it again.

With --loaded it is the startup probe, which sends no image: Triton must be ready and have the model, so that a wrong
name fails the installation, instead of a liveness probe that never fails.
Needs nothing but Python, since NVIDIA's image has no more. What is sent is noise, which no cache has seen: an image for
the input RAW_IMAGE, else tensors of the shapes that Triton's configuration of the model has.
"""

import http.client
import json
import math
import os
import random
import struct
import sys
import urllib.error
import urllib.request
from typing import Any

LOAD = ("Exceeds maximum queue size", "Request timeout expired")
"""Part of Triton's message when its queue is full."""
RAW_IMAGE, LENGTH = "RAW_IMAGE", "RAW_IMAGE_LENGTH"
FLOATS = {"FP16": "e", "FP32": "f", "FP64": "d"}
WHOLE_NUMBERS = {"BOOL": "B", "UINT8": "B", "INT8": "b", "UINT16": "H", "INT16": "h", "UINT32": "I", "INT32": "i"}
WHOLE_NUMBERS |= {"UINT64": "Q", "INT64": "q"}
"""Types of Triton, and how the module struct calls them."""
SIDE = 224
"""Size of a dimension that a model leaves open."""


def ask(url: str, timeout_seconds: float, body: "bytes | None" = None, header_bytes: int = 0) -> bytes:
    """The response to GET, or to POST with a body, whose first `header_bytes` are JSON if binary data follows."""
    headers = {"Inference-Header-Content-Length": str(header_bytes)} if header_bytes else {}
    request = urllib.request.Request(url, body, {"Content-Type": "application/octet-stream", **headers})  # noqa: S310
    with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:  # noqa: S310  # the address is the probe's own
        return answer.read()


def inference(config: "dict[str, Any]") -> "tuple[bytes, int]":
    """The body of a request of the Open Inference Protocol for a model, one row of noise, and the bytes of its JSON."""
    image = b"P6 16 16 255\n" + os.urandom(16 * 16 * 3)
    batched = config.get("max_batch_size", 0) > 0
    inputs, contents = [], []
    for given in config["input"]:
        name, kind = given["name"], given["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES")
        dims = [int(each) for each in given["dims"]]
        if name == RAW_IMAGE:
            dims, content = [len(image)], image
        elif name == LENGTH:
            content = struct.pack("<i", len(image))
        elif given.get("optional"):
            continue
        else:
            if dims[:1] == [-1] and not batched:
                dims[0] = 1
            dims = [SIDE if each < 0 else each for each in dims]
            content = noise(kind, math.prod(dims))
        shape = [1, *dims] if batched else dims
        parameters = {"binary_data_size": len(content)}
        inputs.append({"name": name, "datatype": kind, "shape": shape, "parameters": parameters})
        contents.append(content)
    header = json.dumps({"inputs": inputs}).encode()
    return b"".join([header, *contents]), len(header)


def noise(kind: str, count: int) -> bytes:
    """Random values: from 0 to 1, of whole numbers 0 and 1, and empty texts for other types."""
    if kind in FLOATS:
        return struct.pack(f"<{count}{FLOATS[kind]}", *(random.random() for _ in range(count)))  # noqa: S311  # no secret
    if kind in WHOLE_NUMBERS:
        return struct.pack(f"<{count}{WHOLE_NUMBERS[kind]}", *(each & 1 for each in os.urandom(count)))
    return bytes(4 * count)


def start_fault(model: str, timeout_seconds: float, url: str) -> str:
    """What is missing for a start, as a sentence; "" if nothing is."""
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=timeout_seconds):  # noqa: S310  # the probe's own
            pass
        models = json.loads(ask(f"{url}/v2/repository/index", timeout_seconds, b"{}"))
    except urllib.error.HTTPError as error:
        return f"Triton is not ready: {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return f"Triton does not answer: {error}"
    found = [each for each in models if each["name"] == model]
    if not found:
        names = ", ".join(sorted({each["name"] for each in models}))
        return f"Triton has no model {model}: set triton.probes.model to a model's name; it has {names or 'none'}"
    if not any(each.get("state") == "READY" for each in found):
        reasons = "; ".join(filter(None, (each.get("reason", "") for each in found)))
        return f"Triton has not loaded the model {model}: {reasons or 'no reason is given'}"
    return ""


def fault(model: str, timeout_seconds: float, url: str) -> str:
    """A sentence about the fault; "" if there is none."""
    try:
        ready = json.loads(ask(f"{url}/v2/repository/index", timeout_seconds, b'{"ready": true}'))
        if any(each["name"] == model for each in ready):
            config = json.loads(ask(f"{url}/v2/models/{model}/config", timeout_seconds))
            ask(f"{url}/v2/models/{model}/infer", timeout_seconds, *inference(config))
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
