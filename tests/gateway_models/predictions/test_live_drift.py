"""The service's drift metrics: answers, and a reference stored with the model."""

from base64 import b64encode

import pytest
import structlog

from gateway_models.predictions import metrics
from gateway_models.predictions.drift import reference_of, sample_of
from gateway_models.predictions.live_drift import (
    BOUNDS,
    STORED_IMAGES,
    LiveDrift,
    bin_names,
    read_reference,
)
from tests.doubles.backend import PNG
from tests.gateway_models.predictions.logged import logging_service, scores_backend, send


def answered(count: int = STORED_IMAGES, labels: dict[str, str] | None = None):
    """Answers with scores from 0.5 to 1: three quarters cats, one quarter dogs."""
    images = [
        {"score": 0.5 + number / (2 * count), "entropy": 0.3, "class": "0" if number % 4 else "1"}
        for number in range(count)
    ]
    return sample_of(images, {"0": "cat", "1": "dog"} if labels is None else labels)


def shown(model: str, version: str = "1") -> dict[tuple[str, str], tuple[float, float]]:
    """The count and the expected share of each property and bin."""
    found: dict[tuple[str, str], list[float]] = {}
    for number, metric in enumerate((metrics.DRIFT_IMAGES, metrics.DRIFT_REFERENCE)):
        for sample in (each for family in metric.collect() for each in family.samples):
            if (sample.labels["model"], sample.labels["version"]) == (model, version):
                found.setdefault((sample.labels["property"], sample.labels["bin"]), [0.0, 0.0])[number] = sample.value
    return {key: (values[0], values[1]) for key, values in found.items()}


def test_reference_survives_its_text():
    reference = reference_of(answered(labels={"0": 'a "cat"\\ é', "1": "dog"}))
    read = read_reference(reference.text())
    assert reference.text().isascii()
    assert read.images == STORED_IMAGES
    assert read.classes[0] == ('a "cat"\\ é', pytest.approx(0.75, abs=0.01))
    for name, bounds in BOUNDS.items():
        assert read.shares[name] == pytest.approx(reference.shares[name], abs=1e-6)
        assert sum(read.shares[name]) == pytest.approx(1, abs=1e-4)
        assert len(read.shares[name]) == len(bin_names(bounds))
    # No share is 0: each has a logarithm.
    assert min(min(shares) for shares in reference.shares.values()) > 0
    assert sum(share for _, share in reference.classes.values()) < 1
    # Classes that share a label are counted separately.
    reference = reference_of(answered(labels={"0": "crane", "1": "crane"}))
    assert [label for label, _ in reference.classes.values()] == ["crane (0)", "crane (1)"]


SHORT = '{"images": 1, "score": [1], "entropy": [1], "class": {}}'


@pytest.mark.parametrize("text", ["{", "[]", "{}", SHORT, SHORT.replace("1,", "1e999,")])
def test_unreadable_reference_is_logged_once(text):
    live = LiveDrift()
    with structlog.testing.capture_logs() as logs:
        assert not live.follows("unreadable", "1", text)
        assert not live.follows("unreadable", "1", text)
    assert [event["event"] for event in logs] == ["drift_reference_unreadable"]


def test_answers_are_counted_beside_the_reference():
    live = LiveDrift()
    assert not live.follows("live", "1", "")
    assert live.follows("live", "1", reference_of(answered()).text())
    for class_id in (0, 0, 7):
        live.count("live", "1", class_id, 0.97, 0.3)
    found = shown("live")
    assert found["class", "cat"] == (2, pytest.approx(0.75, abs=0.01))
    assert found["class", "dog"] == (0, pytest.approx(0.25, abs=0.01))
    assert found["class", "other"][0] == 1
    assert found["score", "up to 0.99"][0] == 3
    assert found["entropy", "up to 0.4"][0] == 3
    for name in ("score", "entropy", "class"):
        assert sum(share for (other, _), (_, share) in found.items() if other == name) == pytest.approx(1, abs=1e-3)


def test_bins_include_their_upper_bound():
    live = LiveDrift()
    live.follows("bounds", "1", reference_of(answered()).text())
    # Rounded as the reference is, which has 3 decimals.
    for score in (0.1004, 0.1006, 0.9994, 0.9996):
        live.count("bounds", "1", 0, score, 0.3)
    found = shown("bounds")
    assert [found["score", name][0] for name in ("up to 0.1", "up to 0.2", "up to 0.999", "above 0.999")] == [1] * 4


def test_replaced_reference_leaves_no_share():
    live = LiveDrift()
    live.follows("replaced", "1", reference_of(answered()).text())
    live.follows("replaced", "1", reference_of(answered(labels={"0": "lion", "1": "dog"})).text())
    found = shown("replaced")
    assert found["class", "cat"][1] == 0
    assert found["class", "lion"][1] > 0.7
    assert not live.follows("replaced", "1", "")
    assert {share for _, share in shown("replaced").values()} == {0}


def test_service_counts_every_image(tmp_path):
    """The counts depend neither on the share of the log nor on the classes that the client selects."""
    backend, settings = scores_backend(0.1, 0.85, 0.05), {"log_predictions_share": 0}
    backend.drift_reference = reference_of(answered()).text()
    image = {"name": "IMAGE", "datatype": "BYTES", "shape": [1], "data": [b64encode(PNG).decode()]}
    with logging_service(tmp_path, backend, **settings) as client:
        for _ in range(3):
            send(client, path="/predict?model=followed&top_k=1")
        send(client, b"no image", path="/predict?model=followed")
        assert client.post("/v2/models/followed/infer", json={"inputs": [image]}).status_code == 200
    found = shown("followed")
    assert found["class", "dog"][0] == 4
    assert found["score", "up to 0.9"][0] == 4
    assert sum(count for (name, _), (count, _) in found.items() if name == "entropy") == 4
