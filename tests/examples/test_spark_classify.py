"""The example for Spark: the function that Spark calls with batches of Arrow, without a Spark, which needs Java."""

import pyarrow as pa

from examples.spark_classify import classifier
from tests.doubles.backend import PNG
from tests.gateway_client.bulk.running import folder_of
from tests.services import stub_service


def test_batches_get_their_classes(tmp_path):
    paths = [str(path) for path in sorted(folder_of(tmp_path / "photos", 5, PNG).rglob("*.png"))]
    (bad := tmp_path / "bad.png").write_bytes(b"text")
    batches = [
        pa.RecordBatch.from_pydict({"path": [*paths[:2], str(bad)], "id": [1, 2, 3]}),
        pa.RecordBatch.from_pydict({"path": paths[2:], "id": [4, 5, 6]}),
    ]
    with stub_service() as url:
        rows = [row for batch in classifier(url, None, None)(iter(batches)) for row in batch.to_pylist()]
    assert [row["path"] for row in rows] == [*paths[:2], str(bad), *paths[2:]]
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["label"] for row in rows] == ["cat", "cat", None, "cat", "cat", "cat"]
    assert [row["error"] for row in rows if row["error"]] == ["unsupported_format"]
