"""The page's description of a model: a sentence of its files or its user, and pictures in its folder."""

from pathlib import Path

import pytest

from gateway.errors import UserError
from gateway.plugins.page import model_examples
from gateway_models.repository.card import (
    MAX_CHARACTERS,
    MAX_EXAMPLE_BYTES,
    MAX_EXAMPLES,
    first_sentence,
    read_description,
    read_pictures,
    write_pictures,
)
from tests.doubles.backend import PNG

JPEG = b"\xff\xd8\xff\xe0rest"


GENERATED = "---\nlicense: mit\n---\n<!-- Generated.\n\nKeep. -->"
GENERATED += "\n# vit\nA **fine-tuned** [ViT](https://x.test/a) of `v2`.\nIt is."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GENERATED, "A fine-tuned ViT of v2."),
        ("Trained on 14.2 million images, e.g. of cats! More", "Trained on 14.2 million images, e.g. of cats!"),
        ("| a | b |\n\n- item\n\n![](x.png)\n\nAt last", "At last"),
        ("# Title alone\n", ""),
        ("", ""),
        ("long " * MAX_CHARACTERS, ""),
    ],
)
def test_first_sentence_of_a_readme(text, sentence):
    assert first_sentence(text) == sentence


@pytest.mark.parametrize("text", ["x" * (MAX_CHARACTERS + 1), "two\nlines", "\x1b[31mred"])
def test_description_is_one_short_line(text):
    with pytest.raises(UserError, match="--description"):
        read_description(text)


def image_folder(folder: Path, **classes: int) -> Path:
    """Pictures in a folder for each class, each other than the rest."""
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            (folder / name / f"{number}.jpg").write_bytes(JPEG + name.encode() + bytes([number]))
    return folder


def test_folder_gives_one_picture_of_each_class(tmp_path):
    """Then more of them; only a class of the model is a label."""
    folder = image_folder(tmp_path / "val", daisy=9, other=1, poppy=1)
    pictures = read_pictures([folder], ["daisy", "poppy"])
    assert [picture.label for picture in pictures] == ["daisy", None, "poppy", *["daisy"] * (MAX_EXAMPLES - 3)]


def test_page_reads_the_pictures_that_were_written_last(tmp_path):
    """With the same limits as the page has."""
    assert (MAX_EXAMPLES, MAX_EXAMPLE_BYTES) == (model_examples.MAX_EXAMPLES, model_examples.MAX_EXAMPLE_BYTES)
    folder = image_folder(tmp_path / "val", daisy=1, poppy=1)
    (tmp_path / "red.png").write_bytes(PNG)
    model = tmp_path / "models" / "flowers"
    model.mkdir(parents=True)
    for paths, found in (
        ([folder], [("daisy", "image/jpeg"), ("poppy", "image/jpeg")]),
        ([], [("daisy", "image/jpeg"), ("poppy", "image/jpeg")]),
        ([tmp_path / "red.png"], [(None, "image/png")]),
    ):
        write_pictures(model, read_pictures(paths, ["daisy", "poppy"]))
        examples = model_examples.examples_of(tmp_path / "models", "flowers")
        assert [(example.label, example.media_type) for example in examples] == found
    assert model_examples.read_example(examples[0]) == PNG
    assert len(list(model.iterdir())) == 2


@pytest.mark.parametrize("data", [b"GIF89a", JPEG + bytes(MAX_EXAMPLE_BYTES), None], ids=["gif", "large", "missing"])
def test_unusable_picture_is_refused_by_name(tmp_path, data):
    if data is not None:
        (tmp_path / "a.jpg").write_bytes(data)
    with pytest.raises(UserError, match=r"--example: .*a\.jpg"):
        read_pictures([tmp_path / "a.jpg"], [])


def test_too_many_files_and_a_folder_without_pictures_are_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    with pytest.raises(UserError, match="9 pictures"):
        read_pictures([tmp_path / "a.png"] * 9, [])
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="no JPEG or PNG"):
        read_pictures([tmp_path / "none"], [])
