"""Fetch Triton out of an image, check that it runs here, and use it instead of the wheel.

In the cache folder:

    CACHE/triton-layers/DIGEST        layers while the image is being fetched, so that a second attempt continues
    CACHE/triton-image-0123456789ab/  the unpacked image
"""

import errno
import platform
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from gateway_local import paths
from gateway_local.runtime.base import Say
from gateway_local.runtime.image.elf import MACHINES
from gateway_local.runtime.image.errors import ImageError, ImageUnusable, RegistryUnreachable
from gateway_local.runtime.image.reference import ImageReference
from gateway_local.runtime.image.registry import Advance, ContainerImage, Registry
from gateway_local.runtime.image.unpack import DEFAULT_BACKENDS, PYTHON, unpack
from gateway_local.runtime.image.use import (
    UnpackedImage,
    folder_name,
    image_runtime,
    open_image,
    stub_failure,
    unloadable,
    use,
)
from gateway_plugins.demand.footprint import size
from gateway_plugins.shared.files import locked, whole_folder

LAYERS = "triton-layers"
ARCHITECTURES = dict(zip(MACHINES, ("amd64", "arm64"), strict=True))
"""Go's words for architectures, which registries use, by `platform.machine()`."""


class FetchProgress(Protocol):
    """Shows how far a long step is."""

    def step(self, text: str, total_bytes: int) -> AbstractContextManager[Advance]:
        """Show a step of `total_bytes` during a `with` block; yields a function that takes the bytes that were done."""
        ...


class NoProgress:
    """Shows nothing but the steps' names."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def step(self, text: str, total_bytes: int) -> AbstractContextManager[Advance]:
        """Report the step once."""
        self._say(f"{text} ({size(total_bytes)})")
        return nullcontext(lambda _: None)


def fetch_image(
    name: str,
    cache_dir: Path,
    say: Say,
    *,
    backends: Sequence[str] | None = None,
    progress: FetchProgress | None = None,
) -> UnpackedImage:
    """Fetch the image REGISTRY/NAME[:TAG|@DIGEST] unless it is in the cache, and use its Triton from now on.

    Raises ImageError; ImageUnusable if it does not run here, LibpythonMissing if this Python has no shared library.
    Then the Triton that was used before stays in use.
    """
    reference = ImageReference.parse(name)
    architecture = ARCHITECTURES.get(platform.machine())
    if platform.system() != "Linux" or architecture is None:
        raise ImageUnusable(f"an image's Triton needs Linux on {' or '.join(ARCHITECTURES)}")
    cache_dir = cache_dir.expanduser().resolve()
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with locked(cache_dir / ".image-lock", busy=lambda: _waiting(say)):
            image = _fetch(reference, architecture, cache_dir, say, backends, progress or NoProgress(say))
            _check(image, cache_dir, say)
            use(cache_dir, image)
    except OSError as exc:
        raise _disk_error(exc, cache_dir) from exc
    say(f"gateway up uses {image} from now on; `gateway triton fetch` without --image goes back to the wheel's")
    return image


def _fetch(
    reference: ImageReference,
    architecture: str,
    cache_dir: Path,
    say: Say,
    backends: Sequence[str] | None,
    progress: FetchProgress,
) -> UnpackedImage:
    # A digest names the same bytes for ever, so that its registry need not be asked.
    if reference.digest and (kept := _kept(cache_dir, reference, architecture, backends)):
        return kept
    with Registry(reference) as registry:
        try:
            found = registry.image(architecture)
        except RegistryUnreachable as exc:
            if kept := _kept(cache_dir, reference, architecture, backends):
                say(f"warning: {exc}; using what was fetched as {reference} before, {kept.record.digest}")
                return kept
            raise
        target = cache_dir / folder_name(found.digest)
        there = open_image(target)
        if there is not None and there.record.digest != found.digest:
            there = None  # the folder's name has only the digest's start
        if there is not None and _has(there, backends):
            return there
        for abandoned in cache_dir.glob(".triton-image-*"):  # by a process that was killed while it unpacked
            shutil.rmtree(abandoned, ignore_errors=True)
        layers = _download(registry, found, cache_dir, progress)
    if there is not None:  # those of an earlier command stay
        backends = tuple(dict.fromkeys((*_wanted(there, backends), *there.record.backends)))
    total = sum(layer.size for layer in found.layers)
    with whole_folder(target) as draft, progress.step("unpacking", total) as unpacked:
        unpack(found, layers, draft, reference=str(reference), backends=backends, unpacked=unpacked)
    shutil.rmtree(cache_dir / LAYERS, ignore_errors=True)
    image = open_image(target)
    assert image is not None
    return image


def _kept(
    cache_dir: Path, reference: ImageReference, architecture: str, backends: Sequence[str] | None
) -> UnpackedImage | None:
    """The image that was last fetched under the same reference, for this architecture, with these backends."""
    folders = sorted(cache_dir.glob("triton-image-*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for folder in folders:
        image = open_image(folder)
        if (
            image is not None
            and (image.record.reference == str(reference) or image.record.digest == reference.digest)
            and ARCHITECTURES.get(image.record.machine) == architecture
            and _has(image, backends)
        ):
            return image
    return None


def _has(image: UnpackedImage, backends: Sequence[str] | None) -> bool:
    """Whether the backends that are asked for are unpacked."""
    return set(_wanted(image, backends)) <= set(image.record.backends)


def _wanted(image: UnpackedImage, backends: Sequence[str] | None) -> Sequence[str]:
    """The backends that are asked for: by default, those of DEFAULT_BACKENDS that the image has."""
    return backends if backends is not None else [name for name in DEFAULT_BACKENDS if name in image.record.available]


def _download(registry: Registry, image: ContainerImage, cache_dir: Path, progress: FetchProgress) -> list[Path]:
    """Download the image's layers, those that are not there yet; returns their files."""
    folder = cache_dir / LAYERS
    folder.mkdir(exist_ok=True)
    files = [folder / layer.digest.partition(":")[2] for layer in image.layers]
    _remove_others(folder, {file.name for file in files})
    sizes = {file: layer.size for file, layer in zip(files, image.layers, strict=True)}
    present = sum(path.stat().st_size for path in folder.iterdir())
    total = sum(sizes.values())
    if (missing := total - present) > (free := shutil.disk_usage(folder).free):
        raise ImageError(
            f"the image's layers take {size(missing)} more in {folder}, and {size(free)} are free there: free some, or "
            "set XDG_CACHE_HOME to a folder on a larger disk"
        )
    with progress.step(f"fetching {len(files)} layers", total) as advance:
        # Two layers with one digest, such as empty ones, are one file.
        for layer, file in zip(image.layers, files, strict=True):
            registry.download(layer, file, advance)
    return files


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove layers of an image whose fetching was given up for another's."""
    for path in folder.iterdir():
        if path.name.removesuffix(".part") not in names:
            path.unlink()


def _check(image: UnpackedImage, cache_dir: Path, say: Say) -> None:
    """Raise ImageUnusable unless the server and its Python backend can be started here."""
    with locked(cache_dir / ".lock"):  # the lock of `ensure_runtime`, which writes the same folders
        runtime = image_runtime(cache_dir, image, paths.DEFAULT_BACKENDS)
    missing = unloadable(image)
    for name in ("tritonserver", PYTHON):
        if lines := missing.pop(name, []):
            raise ImageUnusable(f"{image} does not run on this machine: {lines[0]}", *lines[1:])
    if reason := stub_failure(runtime):
        raise ImageUnusable(f"{image} does not run on this machine: its Python backend does not start: {reason}")
    for name, lines in missing.items():
        say(f"warning: the backend {name} does not run on this machine: {'; '.join(lines)}")


def _disk_error(exc: OSError, cache_dir: Path) -> ImageError:
    if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
        free = shutil.disk_usage(cache_dir).free
        return ImageError(
            f"the disk with {cache_dir} is full ({size(free)} free): free some, or set XDG_CACHE_HOME to a folder on a "
            "larger disk; what has arrived is kept, run the command again"
        )
    return ImageError(f"cannot write the image's Triton to {cache_dir}: {exc}")


def _waiting(say: Say) -> bool:
    say("waiting for another process that fetches an image")
    return True
