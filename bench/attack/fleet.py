"""`python -m bench.attack.fleet`: three Tritons with a fault in their preprocessor, and a gateway with two workers.

No known image ends the preprocessor's process. So these Tritons have a copy of it with a fault: an image with KILLER
in its bytes ends the process that decodes it, as a fault in a decoder would.
"""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from bench.repository import repository
from gateway.settings import variable
from gateway.triton.contract import PREPROCESSOR
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.chooser import ensure_runtime
from gateway_local.server import EmbeddedTriton

TRITONS, WORKERS = 3, 2
START_SECONDS = 240.0
KILLER = b"this picture ends the process that decodes it"
MODEL = "mobilenet-v3-small"
_BEGINS = "        if length == 0:\n            return Status.EMPTY"


def make_vulnerable(model: Path) -> None:
    """Put a fault into a copy of the preprocessor's model.py."""
    text = model.read_text()
    if _BEGINS not in text:
        msg = f"{model} has changed: there is no place in it for a fault that begins with {_BEGINS!r}"
        raise ValueError(msg)
    fault = f"        if {KILLER!r} in encoded.tobytes():\n            os.kill(os.getpid(), 9)\n"
    model.write_text(text.replace(_BEGINS, fault + _BEGINS))


def main() -> None:
    """Run the Tritons and the gateway until SIGTERM, or until the gateway ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        models = stack.enter_context(repository(MODEL, (), print))
        make_vulnerable(models / PREPROCESSOR / "1" / "model.py")
        runtime = ensure_runtime(default_cache_dir(), print)
        # Without a response cache, so that each image is decoded.
        tritons = [EmbeddedTriton(runtime, models, on_log=print, cache_bytes=0) for _ in range(TRITONS)]
        for triton in tritons:
            stack.enter_context(triton)
        for triton in tritons:
            triton.wait_ready(START_SECONDS)
        settings = {"triton_url": ",".join(triton.url for triton in tritons), "workers": str(WORKERS)}
        environment = {**os.environ, **{variable(name): value for name, value in settings.items()}}
        gateway = subprocess.Popen([sys.executable, "-m", "gateway_cli", "serve"], env=environment)
        stack.callback(gateway.wait)
        stack.callback(gateway.terminate)
        gateway.wait()


if __name__ == "__main__":
    main()
