"""The writer: no damaged file, no delayed request, and every row counted once."""

import threading

import pytest

from gateway.settings import MIB
from gateway_models.predictions.store import Store
from tests.doubles.backend import PNG
from tests.gateway_models.predictions.logged import (
    LATER,
    counted,
    failures,
    files,
    logging_service,
    outcomes,
    rows,
    send,
    send_many,
)
from tests.processes import wait_for


@pytest.fixture
def disk(monkeypatch) -> threading.Event:
    """While it is cleared, writes hang, as on a disk of a network that is away."""
    works, write = threading.Event(), Store.write
    works.set()

    def wait_and_write(store: Store, path: str, data: bytes) -> None:
        works.wait()
        write(store, path, data)

    monkeypatch.setattr(Store, "write", wait_and_write)
    return works


def test_file_is_written_at_its_number_of_rows(tmp_path):
    with logging_service(tmp_path, constants={**LATER, "file_rows": 10}) as client:
        send_many(client, 9)
        send_many(client, 1)
        assert len(rows(tmp_path, 10)) == 10
        send_many(client, 9)
    assert len(rows(tmp_path)) == 19
    assert len(files(tmp_path)) == 2


def test_file_is_written_at_its_bytes(tmp_path):
    """Images count, so that a burst of them does not pile up."""
    big = PNG + bytes(600_000)
    with logging_service(tmp_path, constants={**LATER, "file_bytes": MIB}, log_predictions_images=True) as client:
        send(client, big)
        send(client, big)
        assert len(rows(tmp_path, 2)) == 2


def test_disk_that_hangs_delays_no_request(tmp_path, disk):
    """The queue fills up to its limit, more is dropped and counted, and requests go on."""
    image = PNG + bytes(100_000)
    with counted() as found:
        with logging_service(tmp_path, constants={"queue_bytes": MIB}) as client:
            disk.clear()
            client.timeout = 10
            before = outcomes()["queue_full"]
            sent = 0
            while outcomes()["queue_full"] == before:
                send_many(client, 50, image)
                sent += 50
            disk.set()
        assert len(rows(tmp_path)) == sent - (outcomes()["queue_full"] - before)
    assert sum(found.values()) == sent


def test_disk_that_hangs_does_not_keep_the_service_from_ending(tmp_path, disk):
    """Rows that are written later are not counted again."""
    with counted() as found:
        with logging_service(tmp_path, constants={"closing_seconds": 0.2}) as client:
            disk.clear()
            send_many(client, 3)
        disk.set()
        wait_for(lambda: all(thread.name != "prediction-log" for thread in threading.enumerate()))
    assert found == {"shutdown": 3}


def test_rows_for_a_folder_that_cannot_be_made_are_written_later(tmp_path):
    folder = tmp_path / "log"
    folder.write_text("a file where the folder should be")
    with counted() as found, logging_service(folder) as client:
        before = failures()
        send_many(client, 2)
        wait_for(lambda: failures() > before)
        folder.unlink()
        assert len(rows(folder, 2)) == 2
    assert found == {"written": 2}


@pytest.mark.parametrize("entropy", [lambda *_, **__: 1 / 0, lambda *_, **__: "no number"], ids=["made", "written"])
def test_row_that_cannot_be_made_or_written_is_counted_and_ends_nothing(tmp_path, monkeypatch, entropy):
    monkeypatch.setattr("gateway_models.predictions.service_log.entropy", entropy)
    with counted() as found, logging_service(tmp_path, log_predictions_rules="error") as client:
        send_many(client, 2)
        send(client, b"no image")
    assert found == {"fault": 2, "written": 1}
