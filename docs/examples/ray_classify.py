"""Classify a table of images on several machines, with Ray Data: Parquet in, Parquet out.

    pip install '.[ray]'
    python docs/examples/ray_classify.py images.parquet classified --gateway http://gateway:8080

The input has a column `path` with files that every worker can read: on a shared disk, or s3:// addresses and others
that fsspec has a package for. Each of `--workers` actors has its own client, which retries temporary errors. Ray
schedules and distributes the rows, and starts an actor that died again. The target must not exist.

    pip install '.[ray,local]'
    python docs/examples/ray_classify.py images.parquet classified --repository /models --workers 8 --gpus 1

With `--repository` instead of `--gateway`, each actor runs a service of its own where Ray places it, with the models of
that repository: the cluster's cores and GPUs do the work, and no service has to run before.
"""

import argparse
import atexit
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray.data import SaveMode

from gateway_client import Gateway, NamedImage
from gateway_client.bulk.remote import image_at, is_url

CLIENT_CPUS = 0.1
"""The part of a core that Ray reserves for an actor whose service runs elsewhere, since it mostly waits.

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


class ClassifyHere(Classify):
    """An actor that starts a service on its own node; the service ends with the actor's process."""

    def __init__(self, repository: str, model: str | None, version: str) -> None:
        from gateway_local.commands.own_service import own_service

        self.service = ExitStack()
        atexit.register(self.service.close)
        url = self.service.enter_context(own_service(Path(repository), lambda line: print(line, file=sys.stderr)))
        super().__init__(url, None, model, version)


def version_in_use(repository: Path, model: str | None) -> str:
    """The version of a repository's model that answers, by its configuration."""
    from gateway.environment import load_settings
    from gateway.triton.contract import VERSION_PARAMETER, parameters, read_model_config
    from gateway_local.default_model import default_model

    name = model or default_model(repository, load_settings())
    return parameters(read_model_config(repository / name / "config.pbtxt")).get(VERSION_PARAMETER, "1")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a Parquet file or folder with a column `path`")
    parser.add_argument("target", help="the folder for the Parquet files with the classes")
    parser.add_argument("--gateway", default="http://127.0.0.1:8080", help="a running service")
    parser.add_argument("--api-key")
    parser.add_argument("--repository", help="a model repository that each node can read; every actor runs a service")
    parser.add_argument("--model")
    parser.add_argument("--version", help="the version that classifies all images; by default the one in use")
    parser.add_argument("--workers", type=int, default=2, help="the number of actors")
    parser.add_argument("--cpus", type=float, help="cores for each actor; with --repository 1, else a tenth")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs for each actor, with --repository")
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args(arguments)
    if options.repository:
        version = options.version or version_in_use(Path(options.repository), options.model)
        actor, constructor_args = ClassifyHere, (options.repository, options.model, version)
        cpus = 1 if options.cpus is None else options.cpus
    else:
        with Gateway(options.gateway, options.api_key) as gateway:
            version = options.version or gateway.version_in_use(options.model)
        actor, constructor_args = Classify, (options.gateway, options.api_key, options.model, version)
        cpus = CLIENT_CPUS if options.cpus is None else options.cpus
    ray.init(ignore_reinit_error=True)
    total = ray.cluster_resources().get("CPU", 0)
    if cpus * options.workers >= total:
        parser.error(
            f"{options.workers} actors of {cpus:g} cores leave none of the cluster's {total:g} for reading the table: "
            "give fewer --workers or less --cpus"
        )
    # A file's rows are one block, which one actor would classify alone.
    table = ray.data.read_parquet(options.source).repartition(target_num_rows_per_block=options.batch)
    rows = table.map_batches(
        actor,
        fn_constructor_args=constructor_args,
        batch_size=options.batch,
        compute=ray.data.ActorPoolStrategy(size=options.workers),
        num_cpus=cpus,
        num_gpus=options.gpus or None,
    )
    # By default a second run would add its rows to those of the first.
    rows.write_parquet(options.target, mode=SaveMode.ERROR)


if __name__ == "__main__":
    main()
