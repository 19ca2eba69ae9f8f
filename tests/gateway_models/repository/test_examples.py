"""Pictures beside a model: scaled, without metadata, with the labels of their folders."""

from pathlib import Path

import pytest
from PIL import Image

from gateway_models.repository.entry import LABELS, write_record
from gateway_models.repository.examples import LOSSLESS_SIDE, MAX_SIDE, ExampleError, read_examples, write_examples
from gateway_plugins.page.model_examples import MAX_EXAMPLES, examples_of, read_example
from tests.gateway_models.repository.entries import entry

LABELLED = ("poppy", "violet")
ORIENTATION, GPS = 0x0112, 0x8825


def picture(path: Path, size: tuple[int, int] = (60, 40)) -> Path:
    """A file whose metadata say that it is to be turned by 90°, and where it was taken."""
    path.parent.mkdir(exist_ok=True, parents=True)
    image = Image.new("RGB", size, (200, 40, 40))
    exif = image.getexif()
    exif[ORIENTATION] = 6
    exif.get_ifd(GPS)[1] = "N"
    image.save(path, exif=exif)
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    head = entry()
    for folder in (head.name, head.classifier):
        (tmp_path / "models" / folder).mkdir(parents=True)
    (tmp_path / "models" / head.classifier / LABELS).write_text("poppy\nviolet\n")
    write_record(head, tmp_path / "models")
    return tmp_path / "models"


def stored(repository: Path) -> list[tuple[str, str | None]]:
    return [(each.path.name, each.label) for each in examples_of(repository, "head")]


def test_examples_are_what_the_gateway_reads(repository, tmp_path):
    files = [picture(tmp_path / "poppy" / "a.jpg", (3000, 2000)), picture(tmp_path / "unsorted" / "b.png")]
    write_examples(read_examples(files), repository / "head", LABELLED)
    assert stored(repository) == [("example-1.jpg", "poppy"), ("example-2.png", None)]
    sizes = []
    for each in examples_of(repository, "head"):
        with Image.open(each.path) as image:
            sizes.append(image.size)
            assert not image.getexif()
    assert sizes == [(683, MAX_SIDE), (40, 60)]
    assert all(read_example(each) for each in examples_of(repository, "head"))


@pytest.mark.parametrize(("side", "suffix"), [(LOSSLESS_SIDE, ".png"), (LOSSLESS_SIDE + 1, ".jpg")])
def test_small_pictures_keep_their_pixels(tmp_path, side, suffix):
    (example,) = read_examples([picture(tmp_path / "a.png", (side, 10))])
    assert example.suffix == suffix


def test_others_replace_the_examples_and_none_removes_them(repository, tmp_path):
    files = [picture(tmp_path / f"{number}.png") for number in range(3)]
    for count in (3, 1):
        write_examples(read_examples(files[:count]), repository / "head", LABELLED)
        assert len(stored(repository)) == count
        assert len(list((repository / "head").glob("example-*"))) == count
    write_examples([], repository / "head", LABELLED)
    assert {path.name for path in (repository / "head").iterdir()} == {"origin.json"}


def test_files_that_are_no_pictures_and_too_many_are_refused(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(ExampleError, match=r"broken\.jpg cannot be used as an example"):
        read_examples([tmp_path / "broken.jpg"])
    good = picture(tmp_path / "good.png")
    assert len(read_examples([good] * MAX_EXAMPLES)) == MAX_EXAMPLES
    with pytest.raises(ExampleError, match=f"{MAX_EXAMPLES + 1} examples are more than {MAX_EXAMPLES}"):
        read_examples([good] * (MAX_EXAMPLES + 1))
