"""Start a Triton while its image is built, have it classify an image, and stop it.

python3 try_models.py MODEL COMMAND…

A network that the image's own backends cannot load, or a package that they lack, then fails the build instead of the
first start. COMMAND starts the server in the foreground. Needs nothing but Python. A build has no GPU, so models of
KIND_AUTO run on the processor here.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

URL = os.environ.get("TRITON_HTTP_URL", "http://127.0.0.1:8000")
LOADED_WITHIN_SECONDS = 600
ANSWER_WITHIN_SECONDS = 60
STOPPED_WITHIN_SECONDS = 30
OUTPUTS = ("PREDICTION", "IMAGE_STATUS")


def is_ready() -> bool:
    """Whether the server and all of its models are ready."""
    try:
        with urllib.request.urlopen(f"{URL}/v2/health/ready", timeout=5) as answer:  # noqa: S310
            return answer.status == 200
    except OSError:
        return False


def classify(model: str) -> dict[str, list[float]]:
    """The outputs for an image of noise, 64 × 64 pixels as uncompressed PPM; raises OSError."""
    image = b"P6 64 64 255\n" + os.urandom(64 * 64 * 3)
    body: dict[str, Any] = {
        "inputs": [
            {"name": "RAW_IMAGE", "datatype": "UINT8", "shape": [1, len(image)], "data": list(image)},
            {"name": "RAW_IMAGE_LENGTH", "datatype": "INT32", "shape": [1, 1], "data": [len(image)]},
        ],
        "outputs": [{"name": name} for name in OUTPUTS],
    }
    request = urllib.request.Request(  # noqa: S310  # the address is this file's own
        f"{URL}/v2/models/{model}/infer", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_SECONDS) as answer:  # noqa: S310
        return {output["name"]: output["data"] for output in json.load(answer)["outputs"]}


def fault(model: str, server: "subprocess.Popen[bytes]") -> str:
    """The fault of the server or of its answer, as a sentence; "" if there is none."""
    end = time.monotonic() + LOADED_WITHIN_SECONDS
    while not is_ready():
        if server.poll() is not None:
            return f"Triton ended with code {server.returncode} before its models were ready; its log is above"
        if time.monotonic() > end:
            return f"the models were not ready after {LOADED_WITHIN_SECONDS} s; Triton's log is above"
        time.sleep(0.5)
    try:
        outputs = classify(model)
    except urllib.error.HTTPError as error:
        return f"{model} does not classify: {error.code} {error.read(2000).decode(errors='replace')}"
    except OSError as error:
        return f"{model} does not classify: {error}"
    prediction, status = outputs["PREDICTION"], outputs["IMAGE_STATUS"]
    if any(status):
        return f"the preprocessor refused the image with status {status}"
    if not prediction or not all(map(math.isfinite, prediction)):
        return f"{model} answered {prediction[:5]}…, which are not scores"
    return ""


def main() -> None:
    """Exit with 0, or with 1 and a sentence."""
    model, *command = sys.argv[1:]
    server = subprocess.Popen(command, start_new_session=True)
    try:
        found = fault(model, server)
    finally:
        server.terminate()
        try:
            server.wait(STOPPED_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
    if found:
        sys.exit(f"error: {found}")
    print(f"{model} classifies in this image")  # noqa: T201  # the output of the build


if __name__ == "__main__":
    main()
