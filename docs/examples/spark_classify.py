"""Classify a table of images with Spark: Parquet in, Parquet out.

    pip install '.[spark]'
    python docs/examples/spark_classify.py images.parquet classified --gateway http://gateway:8080

The input has a column `path` with files that every executor can read: on a shared disk, or s3:// addresses and others
that fsspec has a package for. Each partition of the table has its own client, which retries temporary errors. On a
cluster, install this package on the executors, and start the program with `spark-submit`.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from gateway_client import Gateway, NamedImage
from gateway_client.bulk.remote import image_at, is_url

SCHEMA = "label string, score float, error string, version string"
"""The columns that are added."""


def classifier(
    url: str, api_key: str | None, model: str | None, version: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `DataFrame.mapInArrow`: batches of rows in, the same rows with their classes out."""

    def classify(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Gateway(url, api_key) as gateway:
            most = gateway.limits().max_file_bytes
            for batch in batches:
                images = [_image(path, most) for path in batch.column("path").to_pylist()]
                results = sorted(
                    gateway.classify(images, model=model, version=version, top_k=1), key=lambda result: result.index
                )
                added = {
                    "label": pa.array([result.best.label if result.best else None for result in results], pa.string()),
                    "score": pa.array([result.best.score if result.best else None for result in results], pa.float32()),
                    "error": pa.array([result.error.code if result.error else None for result in results], pa.string()),
                    "version": pa.array([version] * len(results), pa.string()),
                }
                names = [*batch.schema.names, *added]
                yield pa.RecordBatch.from_arrays([*batch.columns, *added.values()], names=names)

    return classify


def _image(path: str, max_file_bytes: int) -> str | NamedImage:
    return image_at(path, max_file_bytes) if is_url(path) else path


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a Parquet file or folder with a column `path`")
    parser.add_argument("target", help="the folder for the Parquet files with the classes")
    parser.add_argument("--gateway", default="http://127.0.0.1:8080", help="a running service")
    parser.add_argument("--api-key")
    parser.add_argument("--model")
    parser.add_argument("--version", help="the version that classifies all images; by default the one in use")
    parser.add_argument("--partitions", type=int, help="parts of the table; by default at least one for each core")
    options = parser.parse_args(arguments)
    with Gateway(options.gateway, options.api_key) as gateway:
        version = options.version or gateway.version_in_use(options.model)
    spark = SparkSession.builder.appName("classify").getOrCreate()
    rows = spark.read.parquet(options.source)
    partitions = options.partitions
    if partitions is None and rows.rdd.getNumPartitions() < spark.sparkContext.defaultParallelism:
        partitions = spark.sparkContext.defaultParallelism  # a small file is one partition: one core would work
    if partitions is not None:
        rows = rows.repartition(partitions)
    before = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in rows.schema.fields)
    work = classifier(options.gateway, options.api_key, options.model, version)
    rows.mapInArrow(work, f"{before}, {SCHEMA}").write.parquet(options.target)


if __name__ == "__main__":
    main()
