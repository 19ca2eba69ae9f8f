"""Where the models and the sample image are: in a checkout, or in an installed wheel.

a checkout     triton_models/, docs/examples/ next to gateway_local/
a wheel        gateway_local/shipped/ with copies of them; models that change are kept in the user's data folder
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from shlex import quote

_PACKAGE = Path(__file__).resolve().parent
MODELS, EXAMPLES = "triton_models", "docs/examples"
SAMPLE = "cat.jpg"
"""The sample image, in EXAMPLES."""


def shipped(package: Path = _PACKAGE) -> Path:
    """The folder with the shipped models and examples; `package` is the folder of gateway_local."""
    installed = package / "shipped"
    return installed if installed.is_dir() else package.parent


def data_models() -> Path:
    """The model repository of users without a checkout: in $XDG_DATA_HOME, else ~/.local/share."""
    root = os.environ.get("XDG_DATA_HOME", "")
    data = Path(root) if Path(root).is_absolute() else Path.home() / ".local" / "share"
    return data / "triton-image-gateway" / MODELS


def default_cache_dir() -> Path:
    """The folder for files that can be fetched again: `triton-image-gateway` in $XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "triton-image-gateway"


def default_model_repository(here: Path | None = None, package: Path = _PACKAGE) -> Path:
    """./triton_models if that is a model repository, else the checkout's, else the user's data folder."""
    own = (here or Path.cwd()) / MODELS
    if any(own.glob("*/config.pbtxt")):
        return own.resolve()
    return data_models() if (package / "shipped").is_dir() else package.parent / MODELS


def at(repository: Path) -> str:
    """The option, after a space, that names a repository in a suggested command; "" for the default repository."""
    return "" if repository.resolve() == DEFAULT_MODEL_REPOSITORY else f" --model-repository {quote(str(repository))}"


def sample_image() -> str:
    """The sample image as a path for commands: the short one of the documentation if it exists here, else in full."""
    short = Path(EXAMPLES) / SAMPLE
    return str(short if short.is_file() else SHIPPED_EXAMPLES / SAMPLE)


def install_models(repository: Path, say: Callable[[str], None]) -> None:
    """Copy the shipped models to the user's data folder if `repository` is that folder and does not exist yet."""
    if repository != data_models() or repository.exists():
        return
    say(f"copying the default model's configuration to {repository}")
    repository.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(shipped() / MODELS, repository, ignore=shutil.ignore_patterns("__pycache__"))


SHIPPED = shipped()
PROJECT = _PACKAGE.parent
"""The root of the checkout, if this is a checkout."""
DEFAULT_BACKENDS = _PACKAGE / "backends"
SHIPPED_MODELS = SHIPPED / MODELS
SHIPPED_EXAMPLES = SHIPPED / EXAMPLES
DEFAULT_MODEL_REPOSITORY = default_model_repository()
