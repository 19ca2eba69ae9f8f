"""From a registry to an image in use; that its Triton answers is tested in test_served.py."""

import errno
import platform
import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gateway_cli.progress import TransferBars
from gateway_local.console import PlainConsole
from gateway_local.runtime.image import fetch
from gateway_local.runtime.image.errors import ImageError, ImageUnusable, RegistryUnreachable
from gateway_local.runtime.image.fetch import LAYERS, fetch_image
from gateway_local.runtime.image.use import in_use
from tests.commands import refusal
from tests.doubles.http import Reply
from tests.doubles.registry import FaultyRegistry, faulty_registry
from tests.triton_images import PYTHON, REPOSITORY, StoredImages, digest, triton_like_nvidias

LAYERS_OF_IMAGE = triton_like_nvidias(PYTHON)
VARIABLES = ["TRITON_SERVER_VERSION=2.75.0"]

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the image is for x86-64")


@pytest.fixture
def registry() -> Iterator[FaultyRegistry]:
    images = StoredImages()
    images.add_image(*LAYERS_OF_IMAGE, variables=VARIABLES)
    with faulty_registry(images) as running:
        yield running


@pytest.fixture(autouse=True)
def starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of the image count as able to start: they have headers, but no code."""
    monkeypatch.setattr(fetch, "unloadable", lambda image: {})
    monkeypatch.setattr(fetch, "stub_failure", lambda runtime: "")


def name(registry: FaultyRegistry, version: str = ":26.11-py3") -> str:
    return f"{registry.host}/{REPOSITORY}{version}"


def layers_asked(registry: FaultyRegistry) -> bool:
    return any(registry.asked(digest(layer)) for layer in LAYERS_OF_IMAGE)


def test_fetched_image_is_in_use(registry, tmp_path):
    said: list[str] = []
    image = fetch_image(name(registry), tmp_path, said.append)
    assert in_use(tmp_path) == image
    assert image.record.version == "2.75.0"
    assert "gateway up uses Triton 2.75.0" in said[-1]
    assert not (tmp_path / LAYERS).exists()
    assert len(registry.asked("blobs")) == 1 + len(LAYERS_OF_IMAGE)


@pytest.mark.parametrize("by_digest", [False, True], ids=["of a tag", "of a digest, which is not asked for"])
def test_second_fetch_downloads_no_layer(registry, tmp_path, by_digest):
    version = f"@{digest(registry.images.manifests['26.11-py3'][1])}" if by_digest else ":26.11-py3"
    first = fetch_image(name(registry, version), tmp_path, print)
    registry.requests.clear()
    assert fetch_image(name(registry, version), tmp_path, print) == first
    assert not layers_asked(registry)
    assert bool(registry.requests) is not by_digest


def test_what_was_fetched_is_used_while_the_registry_is_away(registry, tmp_path):
    first = fetch_image(name(registry), tmp_path, print)
    registry.answer = lambda asked: Reply(200, cut=0, headers={"Content-Length": "5"})
    said: list[str] = []
    assert fetch_image(name(registry), tmp_path, said.append) == first
    assert "cannot be reached" in said[0]
    assert "using what was fetched" in said[0]
    with pytest.raises(RegistryUnreachable):
        fetch_image(name(registry), tmp_path, print, backends=("python", "dali"))


def test_leftovers_of_a_killed_process_and_of_another_image_are_removed(registry, tmp_path):
    """The folder of a killed process takes gigabytes. Layers of another image are removed before the first download."""
    (tmp_path / ".triton-image-0123456789ab-x" / "libraries").mkdir(parents=True)
    (tmp_path / LAYERS).mkdir()
    other = tmp_path / LAYERS / f"{'0' * 64}.part"
    other.write_bytes(b"x")
    removed: list[bool] = []
    registry.answer = lambda asked: removed.append(other.exists()) if digest(LAYERS_OF_IMAGE[0]) in asked.path else None
    fetch_image(name(registry), tmp_path, print)
    assert removed == [False]
    assert not list(tmp_path.glob(".triton-image-*"))


def test_tag_that_has_moved_is_fetched_again(registry, tmp_path):
    first = fetch_image(name(registry), tmp_path, print)
    registry.images.add_image(*LAYERS_OF_IMAGE, variables=["TRITON_SERVER_VERSION=2.76.0"])
    assert fetch_image(name(registry), tmp_path, print).record.version == "2.76.0"
    assert first.folder.is_dir()


def test_further_backends_are_added(registry, tmp_path):
    assert fetch_image(name(registry), tmp_path, print, backends=["python"]).record.backends == ("python",)
    added = fetch_image(name(registry), tmp_path, print, backends=["python", "dali"])
    assert set(added.record.backends) == {"python", "dali"}
    assert set(fetch_image(name(registry), tmp_path, print).record.backends) == {"python", "pytorch", "dali"}


@pytest.mark.parametrize(
    ("check", "fault", "reason"),
    [
        ("unloadable", {"tritonserver": ["libx.so => not found"]}, r"on this machine: libx\.so => not found"),
        ("stub_failure", "cannot open libpython", "its Python backend does not start: cannot open libpython"),
    ],
)
def test_image_that_does_not_start_is_not_in_use_and_one_without_a_backend_is(
    registry, tmp_path, monkeypatch, check, fault, reason
):
    monkeypatch.setattr(fetch, check, lambda _: fault)
    with pytest.raises(ImageUnusable, match=reason):
        fetch_image(name(registry), tmp_path, print)
    assert in_use(tmp_path) is None
    monkeypatch.setattr(fetch, "stub_failure", lambda _: "")
    monkeypatch.setattr(fetch, "unloadable", lambda image: {"pytorch": ["libcublas.so.13 => not found"]})
    said: list[str] = []
    fetch_image(name(registry), tmp_path, said.append)
    assert any("warning: the backend pytorch does not run" in line for line in said)


def test_disk_that_is_too_small_is_refused_before_the_download(registry, tmp_path, monkeypatch):
    total = sum(map(len, LAYERS_OF_IMAGE))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=total - 1))
    with pytest.raises(ImageError, match="free some, or set XDG_CACHE_HOME"):
        fetch_image(name(registry), tmp_path, print)
    assert not layers_asked(registry)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=total))
    assert fetch_image(name(registry), tmp_path, print)


def test_full_disk_is_named_and_what_has_arrived_is_used_again(registry, tmp_path, monkeypatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fetch, "unpack", full)
        with pytest.raises(ImageError, match=f"the disk with {tmp_path} is full .*run the command again"):
            fetch_image(name(registry), tmp_path, print)
    assert not list(tmp_path.glob("triton-image-*"))
    registry.requests.clear()
    fetch_image(name(registry), tmp_path, print)
    assert not layers_asked(registry)


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "riscv64")])
def test_other_machine_is_refused_or_asks_for_its_own_image(registry, tmp_path, monkeypatch, system, machine):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(ImageUnusable, match="needs Linux on x86_64 or aarch64"):
        fetch_image(name(registry), tmp_path, print)
    assert not registry.requests
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(ImageError, match="is for linux on amd64; this machine is linux on arm64"):
        fetch_image(name(registry), tmp_path, print)


def test_backends_without_an_image_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "--backend is for images" in refusal("triton", "fetch", "--backend", "pytorch")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_else_a_line(terminal):
    said: list[str] = []
    console = PlainConsole(force_terminal=terminal, width=100, color_system=None)
    bars = TransferBars(pytest.fail if terminal else said.append, console)
    with console.capture() as capture, bars.step("fetching 3 layers", 3 * 2**30) as advance:
        advance(2**30)
    assert said == ([] if terminal else ["fetching 3 layers (3.0 GiB)"])
    assert ("fetching 3 layers" in capture.get()) is terminal
