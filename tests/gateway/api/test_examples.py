"""The pictures to try with a model: those beside it in the repository, the shipped ones for ImageNet, or none."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway_plugins.keys.key_file import add_key
from gateway_plugins.page.model_examples import MAX_EXAMPLE_BYTES, MAX_EXAMPLES
from tests.doubles.backend import MODEL, PNG, StubBackend
from tests.services import client_of

IMAGENET = ("tabby", "espresso", "missile", *(f"class {number}" for number in range(997)))


def imagenet(labels: Sequence[str] = IMAGENET) -> StubBackend:
    return StubBackend(labels=labels)


def examples(folder: Path, *entries: object) -> None:
    """The index of the stub's model, and a picture for each of its entries."""
    below = folder / MODEL.name
    below.mkdir(exist_ok=True)
    (below / "examples.json").write_text(json.dumps(entries))
    for number in range(1, len(entries) + 1):
        (below / f"example-{number}.png").write_bytes(PNG)


def listed(folder: Path | None, backend: StubBackend | None = None) -> list[dict[str, str | None]]:
    with client_of(backend or StubBackend(), model_repository=folder) as client:
        return client.get(f"/models/{MODEL.name}/examples").json()["examples"]


def test_pictures_beside_a_model_are_served(tmp_path):
    examples(tmp_path, {"file": "example-1.png", "label": "cat"}, {"file": "example-2.png"})
    with client_of(StubBackend(), model_repository=tmp_path) as client:
        first, second = client.get(f"/models/{MODEL.name}/examples").json()["examples"]
        assert (first["label"], second["label"]) == ("cat", None)
        response = client.get(f"/{first['url']}")
        assert (response.content, response.headers["content-type"]) == (PNG, "image/png")
        assert client.get(f"/models/{MODEL.name}/examples/2").status_code == 404
        assert client.get("/models/nothing/examples").json()["code"] == "model_not_found"
        assert client.get("/models/../examples").status_code == 404


def test_only_models_with_the_classes_of_imagenet_get_the_shipped_pictures(tmp_path):
    assert listed(None) == []
    assert [each["url"] for each in listed(None, imagenet())] == [
        "assets/cat.jpg",
        "assets/coffee.jpg",
        "assets/rocket.jpg",
    ]
    assert listed(None, imagenet(IMAGENET[:-1])) == []
    examples(tmp_path, {"file": "example-1.png", "label": "tabby"})
    assert [each["label"] for each in listed(tmp_path, imagenet())] == ["tabby"]


@pytest.mark.parametrize("file", ["../origin.json", "example-1.svg", "/etc/passwd", "config.pbtxt", "example-1.png/"])
def test_index_names_no_other_file(tmp_path, file):
    examples(tmp_path, {"file": file, "label": None}, {"file": "example-2.png", "label": None})
    assert len(listed(tmp_path)) == 1


@pytest.mark.parametrize("text", ["", "{", '{"file": 1}', '[{"file": 1}]', "[" * 100_000])
def test_unreadable_index_is_none(tmp_path, text):
    examples(tmp_path)
    (tmp_path / MODEL.name / "examples.json").write_text(text)
    assert listed(tmp_path) == []


def test_examples_are_limited_in_number_and_size(tmp_path):
    examples(tmp_path, *({"file": f"example-{number}.png"} for number in range(1, MAX_EXAMPLES + 2)))
    assert len(listed(tmp_path)) == MAX_EXAMPLES
    first, second = (tmp_path / MODEL.name / f"example-{number}.png" for number in (1, 2))
    first.write_bytes(bytes(MAX_EXAMPLE_BYTES))
    second.write_bytes(bytes(MAX_EXAMPLE_BYTES + 1))
    with client_of(StubBackend(), model_repository=tmp_path) as client:
        assert client.get(f"/models/{MODEL.name}/examples/0").status_code == 200
        assert client.get(f"/models/{MODEL.name}/examples/1").status_code == 404


def test_examples_need_a_key_where_keys_are_required(tmp_path):
    examples(tmp_path, {"file": "example-1.png"})
    keys = tmp_path / "keys"
    key = add_key(keys, "page")
    with client_of(StubBackend(), model_repository=tmp_path, api_keys_file=keys) as client:
        for path in ("examples", "examples/0"):
            assert client.get(f"/models/{MODEL.name}/{path}").status_code == 401
            assert client.get(f"/models/{MODEL.name}/{path}", headers={"X-API-Key": key}).status_code == 200
