"""The stateful models for streams: the shipped one, or the user's."""

import shutil
from pathlib import Path

from gateway.triton.contract import SEQUENCE_FRAMES, SEQUENCE_MODEL, SEQUENCE_PREDICTION
from gateway.triton.model_config import read_model_config
from gateway_local.paths import SHIPPED_MODELS
from gateway_models.repository.entry import EntryError, check_name


def provide_stateful(name: str, repository: Path) -> bool:
    """Ensure that a repository has a stateful model; copies the shipped one if needed, and returns whether it did.

    Raises EntryError if the user's own does not exist or cannot follow a stream.
    """
    check_name(name)
    folder = repository / name
    if name == SEQUENCE_MODEL and not folder.exists():
        try:
            shutil.copytree(SHIPPED_MODELS / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
        except OSError as exc:
            raise EntryError(f"cannot write {folder}: {exc}") from exc
        return True
    try:
        config = read_model_config(folder / "config.pbtxt")
    except (OSError, ValueError) as exc:
        raise EntryError(
            f"{name!r} cannot follow streams: {exc}; docs/guides/streams.md has an example of such a model"
        ) from exc
    given = {output.name for output in config.output}
    if not config.HasField("sequence_batching") or not given.issuperset({SEQUENCE_PREDICTION, SEQUENCE_FRAMES}):
        raise EntryError(
            f"{folder / 'config.pbtxt'} needs sequence_batching and the outputs {SEQUENCE_PREDICTION} and "
            f"{SEQUENCE_FRAMES} to follow streams; docs/guides/streams.md has an example"
        )
    return False
