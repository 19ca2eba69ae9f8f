"""Classify a table of images on several machines, with Ray Data: Parquet in, Parquet out.

    pip install 'ray[data]' ./gateway_client
    python examples/ray_classify.py images.parquet classified --url http://gateway:8080

The input has a column `path` with files that every worker can read, for instance on a shared disk. Each of `--workers`
actors has its own client, which retries temporary errors. Ray schedules and distributes the rows.
"""

import argparse
from typing import Any

import ray

from gateway_client import Gateway


class Classify:
    """One actor: a batch of rows in, the same rows with their classes out."""

    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        self.gateway = Gateway(url, api_key)
        self.model = model

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add label, score and error to each row."""
        paths = [str(path) for path in batch["path"]]
        results = sorted(self.gateway.classify(paths, model=self.model, top_k=1), key=lambda result: result.index)
        return {
            **batch,
            "label": [result.best.label if result.best else "" for result in results],
            "score": [result.best.score if result.best else float("nan") for result in results],
            "error": [result.error.code if result.error else "" for result in results],
        }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a Parquet file or folder with a column `path`")
    parser.add_argument("target", help="the folder for the Parquet files with the classes")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--api-key")
    parser.add_argument("--model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    rows = ray.data.read_parquet(options.source).map_batches(
        Classify,
        fn_constructor_args=(options.url, options.api_key, options.model),
        batch_size=options.batch,
        compute=ray.data.ActorPoolStrategy(size=options.workers),
    )
    rows.write_parquet(options.target)


if __name__ == "__main__":
    main()
