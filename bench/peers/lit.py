"""LitServe with the same network: `python -m bench.peers.lit PORT WORKERS`."""

import sys
from typing import Any

import litserve
import torch
from starlette.requests import Request

from bench.peers.network import Network

MAX_BATCH_SIZE, BATCH_TIMEOUT_SECONDS = 8, 0.01


class Api(litserve.LitAPI):
    """Takes a form with one file, and returns the JSON of `POST /predict`."""

    def setup(self, device: str) -> None:  # noqa: ARG002  # LitServe's signature
        """Load the network."""
        self.network = Network()

    def decode_request(self, request: Request) -> torch.Tensor:
        """Decode and resize the image of a form."""
        form: Any = request  # LitServe has parsed it, and passes a form in place of the request
        return self.network.prepare(form["files"].file.read())

    def batch(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Collect a batch; `predict` stacks it in the network's memory layout."""
        return inputs

    def predict(self, x: list[torch.Tensor]) -> list[dict[str, object]]:
        """Classify a batch."""
        return self.network.answers(x)

    def unbatch(self, output: list[dict[str, object]]) -> list[dict[str, object]]:
        """Split a batch's results."""
        return output

    def encode_response(self, output: dict[str, object]) -> dict[str, object]:
        """Return the result, which JSON can encode, as it is."""
        return output


if __name__ == "__main__":
    port, workers = map(int, sys.argv[1:])
    api = Api(max_batch_size=MAX_BATCH_SIZE, batch_timeout=BATCH_TIMEOUT_SECONDS)
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=workers)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="error")
