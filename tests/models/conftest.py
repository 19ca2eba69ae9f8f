"""What the tests of models share: entries that take seconds to make, made once."""

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

from gateway.networks.add import Request, add
from gateway.repository.entry import Entry
from tests.models.builders import SMALL, Head, save_labels, save_torchscript
from tests.photos import PHOTOS, photo


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Torch on one core: with more of them it waits for those that Triton and the networks' processes have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the photographs, as JPEG."""
    folder = tmp_path_factory.mktemp("photos")
    for name in PHOTOS:
        (folder / f"{name}.jpg").write_bytes(photo(name))
    return folder


@pytest.fixture(scope="session")
def added_head(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Entry]:
    """A repository with a small model `head` of five classes in it; not to be changed."""
    folder = tmp_path_factory.mktemp("head")
    request = Request(
        source=str(save_torchscript(Head(), folder / "head.pt")),
        name="head",
        labels=save_labels(folder / "labels.txt"),
        preprocessing=SMALL,
    )
    with redirect_stdout(io.StringIO()):
        return folder / "models", add(request, folder / "models", print)
