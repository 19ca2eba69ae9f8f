"""Which Triton runs here: the one of an image that was put into use, else the wheel's."""

from pathlib import Path

from gateway_local.paths import DEFAULT_BACKENDS
from gateway_local.runtime.base import RuntimeFetchFailed, Say, TritonRuntime
from gateway_local.runtime.image.errors import ImageUnusable
from gateway_local.runtime.image.use import IN_USE, UnpackedImage, check_machine, image_runtime, in_use, runs_here
from gateway_local.runtime.wheel import TRITON_VERSION, check_platform, is_wheel_fetched, wheel_runtime
from gateway_plugins.shared.files import locked_where_writable


def ensure_runtime(cache_dir: Path, say: Say, *, backends: Path = DEFAULT_BACKENDS) -> TritonRuntime:
    """Fetch Triton into `cache_dir` unless it is there, and compose its backend directory.

    The Triton of an image that was put into use there is preferred, if it runs on this machine and this Python.
    `backends` holds Python-based backends, a folder each, that are added to Triton's own; `say` gets a sentence for
    each step that takes time. Several processes may call this at once. Raises TritonRuntimeError.
    """
    cache_dir = cache_dir.expanduser().resolve()
    image = _usable_image(cache_dir, say)
    if image is None:
        check_platform()
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with locked_where_writable(cache_dir / ".lock", busy=lambda: _waiting(say)):
            if image is None:
                return wheel_runtime(cache_dir, say, backends)
            return image_runtime(cache_dir, image, backends)
    except OSError as exc:
        raise RuntimeFetchFailed(f"cannot write Triton's runtime to {cache_dir}: {exc}") from exc


def is_fetched(cache_dir: Path) -> bool:
    """Whether Triton is in the cache, so that a start needs no package index."""
    image = in_use(cache_dir)
    return (image is not None and runs_here(image)) or is_wheel_fetched(cache_dir)


def _usable_image(cache_dir: Path, say: Say) -> UnpackedImage | None:
    """The image in use if it runs here; None, with a warning if there should be one, for the wheel."""
    image = in_use(cache_dir)
    if image is None:
        if (cache_dir / IN_USE).is_file():
            say(
                f"warning: the image's Triton that {cache_dir / IN_USE} names is gone or damaged; using Triton "
                f"{TRITON_VERSION} from the wheel: run `gateway triton fetch` with --image again, or without it"
            )
        return None
    try:
        check_machine(image)
    except ImageUnusable as exc:
        say(f"warning: {exc}; using Triton {TRITON_VERSION} from the wheel")
        return None
    return image


def _waiting(say: Say) -> bool:
    say("waiting for another process that prepares Triton")
    return True
