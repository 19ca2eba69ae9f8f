"""Classify a table of images on several machines, with Ray Data: Parquet in, Parquet out.

    pip install '.[ray]'
    python docs/examples/ray_classify.py images.parquet classified --gateway http://gateway:8080

The input has a column `path` with files that every worker can read: on a shared disk, or s3:// addresses and others
that fsspec has a package for. Each of `--workers` actors has its own client, which retries temporary errors. Ray
schedules and distributes the rows, and starts an actor that died again. The target must not exist.

Where each node runs `gateway up`, `--gateway http://127.0.0.1:8080` asks the service of the actor's own node.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import ray
from ray.data import SaveMode

from gateway_client import Gateway, NamedImage
from gateway_client.bulk.remote import image_at, is_url

CLIENT_CPUS = 0.1
"""The part of a core that Ray reserves for an actor, which mostly waits for the service.

With Ray's default of a whole core for each actor, as many actors as there are cores would leave none for the task that
reads the table, and the run would wait for ever.
"""


class Classify:
    """One actor: a batch of rows in, the same rows with their classes out."""

    def __init__(self, url: str, api_key: str | None, model: str | None, version: str) -> None:
        self.gateway = Gateway(url, api_key)
        self.model, self.version = model, version
        self.max_file_bytes = self.gateway.limits().max_file_bytes

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add label, score and error to each row."""
        images = [self.image(str(path)) for path in batch["path"]]
        results = self.gateway.classify(images, model=self.model, version=self.version, top_k=1)
        results = sorted(results, key=lambda result: result.index)
        return {
            **batch,
            "label": [result.best.label if result.best else "" for result in results],
            "score": [result.best.score if result.best else float("nan") for result in results],
            "error": [result.error.code if result.error else "" for result in results],
            "version": [self.version] * len(results),
        }

    def image(self, path: str) -> str | NamedImage:
        """A file's path, or an image that is read from its address."""
        return image_at(path, self.max_file_bytes) if is_url(path) else path


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a Parquet file or folder with a column `path`")
    parser.add_argument("target", help="the folder for the Parquet files with the classes")
    parser.add_argument("--gateway", default="http://127.0.0.1:8080", help="a running service")
    parser.add_argument("--api-key")
    parser.add_argument("--model")
    parser.add_argument("--version", help="the version that classifies all images; by default the one in use")
    parser.add_argument("--workers", type=int, default=2, help="the number of actors")
    parser.add_argument("--cpus", type=float, default=CLIENT_CPUS, help="cores for each actor")
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args(arguments)
    ray.init(ignore_reinit_error=True)
    total = ray.cluster_resources().get("CPU", 0)
    if options.cpus * options.workers >= total:
        parser.error(
            f"{options.workers} actors of {options.cpus:g} cores leave none of the cluster's {total:g} for reading the "
            "table: give fewer --workers or less --cpus"
        )
    with Gateway(options.gateway, options.api_key) as gateway:
        version = options.version or gateway.version_in_use(options.model)
    # A file's rows are one block, which one actor would classify alone.
    table = ray.data.read_parquet(options.source).repartition(target_num_rows_per_block=options.batch)
    rows = table.map_batches(
        Classify,
        fn_constructor_args=(options.gateway, options.api_key, options.model, version),
        batch_size=options.batch,
        compute=ray.data.ActorPoolStrategy(size=options.workers),
        num_cpus=options.cpus,
    )
    # By default a second run would add its rows to those of the first.
    rows.write_parquet(options.target, mode=SaveMode.ERROR)


if __name__ == "__main__":
    main()
