"""The libraries other than torch whose models are recognised: one entry of FRAMEWORKS each.

To add one: its entry here, a function in `converters`, and a row in docs/guides/model-sources.md.
Nothing here imports a library or reads more of a file than `file_kinds` gives it.
"""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway.values.extras import install
from gateway_models.networks.errors import ModelError


@dataclass(frozen=True, slots=True)
class Framework:
    """A kind of file or folder: how its content is recognised, and which function converts it.

    `members` are files that a zip or a folder has, a file begins with one of `first`, and a pickle names one of
    `modules`, modules or names in them.
    `opener` is a function of `converters`; "" for a kind that is recognised and not converted. `needs` are the modules
    that it imports, and `elsewhere` converts {path} on another machine. `runs_code` means that loading such a file
    needs --trust, and `has_labels` means that it may have labels.
    """

    key: str
    content: str
    elsewhere: str
    members: frozenset[str] = frozenset()
    first: tuple[bytes, ...] = ()
    modules: tuple[str, ...] = ()
    opener: str = ""
    needs: tuple[str, ...] = ()
    runs_code: bool = False
    has_labels: bool = False

    @property
    def value(self) -> str:
        """The kind of the file, in the words of a message."""
        return self.content

    def missing(self) -> tuple[str, ...]:
        """The modules in `needs` that are not installed."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)

    def by_hand(self, path: Path) -> str:
        """The advice with the one command that converts it."""
        return self.elsewhere.replace("{path}", str(path)).replace("{stem}", path.stem)

    def check(self, path: Path) -> None:
        """Raise ModelError where a file of this kind cannot be converted here."""
        if not self.opener:
            raise ModelError(f"{path} is {self.content}: {self.by_hand(path)}")
        if missing := self.missing():
            raise ModelError(
                f"{path} is {self.content}, and {' and '.join(missing)} must be installed to convert it: "
                f"{install('converters')}. Or {self.by_hand(path)}"
            )


_KERAS = "convert it to ONNX where it was trained: docs/guides/model-sources.md has the commands"
_SKLEARN = "serve it as it is, by a Python function that loads {path}: docs/guides/model-sources.md has one"
FRAMEWORKS = (
    Framework(
        key="yolo",
        content="a pickle of Ultralytics",
        modules=("ultralytics",),
        elsewhere="it is not loaded here. Where Ultralytics is installed, run `yolo export model={path} format=onnx`; "
        "then `gateway model add {stem}.onnx`, which also has the labels and the image size of a classifier",
    ),
    Framework(
        key="keras",
        content="a Keras model",
        members=frozenset({"metadata.json", "config.json", "model.weights.h5"}),
        first=(b"\x89HDF\r\n\x1a\n",),
        opener="keras_model",
        needs=("keras",),
        elsewhere=_KERAS,
    ),
    Framework(
        key="saved-model",
        content="a SavedModel of TensorFlow",
        members=frozenset({"saved_model.pb"}),
        elsewhere="where TensorFlow is installed, run: python -m tf2onnx.convert --saved-model {path} --output "
        "{stem}.onnx; then `gateway model add {stem}.onnx`",
    ),
    Framework(
        key="sklearn",
        content="a pickle of scikit-learn",
        modules=("sklearn",),
        opener="sklearn_pickle",
        needs=("sklearn", "skl2onnx"),
        elsewhere=_SKLEARN,
        runs_code=True,
        has_labels=True,
    ),
    Framework(
        key="skops",
        content="a model of skops",
        members=frozenset({"schema.json"}),
        opener="skops_pipeline",
        needs=("sklearn", "skl2onnx", "skops"),
        elsewhere=_SKLEARN,
        has_labels=True,
    ),
)


def framework_named(key: str) -> Framework | None:
    """The framework whose files are sources of kind `key`; None for other kinds."""
    return next((framework for framework in FRAMEWORKS if framework.key == key), None)


def recognised(*, members: Iterable[str] = (), modules: Iterable[str] = (), head: bytes = b"") -> Framework | None:
    """The framework of a zip or folder with these files, a pickle that names these modules, or a file's first bytes."""
    there, named = set(members), [f"{name}." for name in modules]

    def fits(framework: Framework) -> bool:
        return (
            (bool(framework.members) and framework.members <= there)
            or head.startswith(framework.first)
            or any(name.startswith(f"{module}.") for module in framework.modules for name in named)
        )

    return next(filter(fits, FRAMEWORKS), None)
