"""The libraries other than torch whose models are recognised: one entry of FRAMEWORKS each.

To add one: its entry here, a function in `converters`, and a row in docs/guides/model-sources.md.
Nothing here imports a library or reads more of a file than `file_kinds` gives it.
"""

import importlib.util
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import UserError
from gateway.values.extras import install


class FrameworkError(UserError):
    """A model of another framework cannot be converted here; the message names what to do."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A kind of file or folder: how its content is recognised, and which function converts it.

    `members` are files that a zip or a folder has, `first` are the first bytes of a file after an offset, which also
    `contains` a text, and `modules` are modules, or names in them, of which a pickle names one.
    `opener` is a function of `converters`; "" for a kind that is recognised and not converted. `needs` are the modules
    that it imports, and `elsewhere` converts {path} on another machine. `code` says why loading such a file needs
    --trust, `images` is advice on the options for its images, and `has_labels` means that it may have labels.
    """

    key: str
    content: str
    elsewhere: str
    members: frozenset[str] = frozenset()
    first: tuple[int, bytes] = (0, b"")
    contains: bytes = b""
    modules: tuple[str, ...] = ()
    opener: str = ""
    needs: tuple[str, ...] = ()
    install: str = install("converters")
    code: str = ""
    images: str = ""
    has_labels: bool = False

    @property
    def value(self) -> str:
        """What the file is, in the words of a message."""
        return self.content

    def missing(self) -> tuple[str, ...]:
        """The modules in `needs` that are not installed."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)

    def by_hand(self, path: Path) -> str:
        """The advice with the one command that converts it."""
        return self.elsewhere.replace("{path}", str(path)).replace("{stem}", path.stem)

    def check(self, path: Path) -> None:
        """Raise FrameworkError where a file of this kind cannot be converted here."""
        if not self.opener:
            raise FrameworkError(f"{path} is {self.content}: {self.by_hand(path)}")
        if missing := self.missing():
            raise FrameworkError(
                f"{path} is {self.content}, and {' and '.join(missing)}, which would convert it, "
                f"{'is' if len(missing) == 1 else 'are'} not installed: {self.install}. Or {self.by_hand(path)}"
            )


# Not model.export, which leaves layers active that augment images.
_KERAS = (
    "on a machine that has Keras and TensorFlow, run: python -c \"import keras; m = keras.saving.load_model('{path}'); "
    "a = keras.export.ExportArchive(); a.track(m); a.add_endpoint('serve', lambda x: m(x, training=False), "
    "[keras.InputSpec(shape=m.input_shape, dtype='float32')]); a.write_out('{stem}_saved')\" && python -m "
    "tf2onnx.convert --saved-model {stem}_saved --output {stem}.onnx; then `gateway model add {stem}.onnx`"
)
_KERAS_IMAGES = (
    "With Keras, these often are --resize HEIGHT,WIDTH --crop SIDE, and --pixels for a network that begins with "
    "Rescaling or that was trained on values of 0 to 255, or else --mean 0,0,0 --std 1,1,1 after a division by 255"
)
_SKLEARN_IMAGES = (
    "A pipeline of scikit-learn takes an image as one row of numbers, row by row of its pixels: --crop SIDE, "
    "--grayscale for one channel, and --pixels for values of 0 to 255, or --mean 0 --std 1 for those of 0 to 1"
)
_SKLEARN = "serve it as it is, by a Python function that loads {path}: docs/guides/model-sources.md has one"
_HDF5 = (0, b"\x89HDF\r\n\x1a\n")
FRAMEWORKS = (
    Framework(
        key="yolo",
        content="a YOLO classifier of Ultralytics",
        modules=("ultralytics.nn.tasks.ClassificationModel",),
        elsewhere="it is a pickle, which is not loaded here. Where Ultralytics is installed, run `yolo export "
        "model={path} format=onnx`; then `gateway model add {stem}.onnx`, which also has the labels and the image size",
    ),
    Framework(
        key="yolo-task",
        content="a YOLO model of Ultralytics that does not classify",
        modules=("ultralytics",),
        elsewhere="it finds objects by boxes, masks or points, and only classifiers of whole images are served: train "
        "one of Ultralytics' models that end in -cls, export it as ONNX, and `gateway model add` that",
    ),
    Framework(
        key="fastai",
        content="a pickle of fastai",
        modules=("fastai.learner.Learner", "fastcore"),
        elsewhere='it is not loaded here. Where fastai is installed, run: python -c "import torch; from fastai.learner '
        "import load_learner; m = load_learner('{path}').model.eval(); torch.onnx.export(m, (torch.rand(2, 3, 224, "
        "224),), '{stem}.onnx', dynamic_shapes=((torch.export.Dim.DYNAMIC, None, None, None),), external_data=False)\""
        "; then `gateway model add {stem}.onnx`",
    ),
    Framework(
        key="keras",
        content="a Keras model",
        members=frozenset({"metadata.json", "config.json", "model.weights.h5"}),
        opener="keras_model",
        needs=("keras",),
        elsewhere=_KERAS,
        images=_KERAS_IMAGES,
    ),
    Framework(
        key="keras-hdf5",
        content="a Keras model in HDF5",
        first=_HDF5,
        contains=b"model_config",
        opener="keras_model",
        needs=("keras",),
        elsewhere=_KERAS,
        images=_KERAS_IMAGES,
    ),
    Framework(
        key="hdf5",
        content="an HDF5 file without a network, such as weights of Keras",
        first=_HDF5,
        elsewhere="build the network in Python, load the weights into it and save both: model.load_weights('{path}'); "
        "model.save('{stem}.keras'); then `gateway model add {stem}.keras`",
    ),
    Framework(
        key="saved-model",
        content="a SavedModel of TensorFlow",
        members=frozenset({"saved_model.pb"}),
        opener="saved_model",
        needs=("tensorflow", "tf2onnx"),
        install="pip install tensorflow tf2onnx",
        elsewhere="on a machine that has TensorFlow, run: python -m tf2onnx.convert --saved-model {path} --output "
        "{stem}.onnx; then `gateway model add {stem}.onnx`",
        code="its graph can read and write files",
        images=_KERAS_IMAGES,
    ),
    Framework(
        key="tflite",
        content="a model of TensorFlow Lite",
        first=(4, b"TFL3"),
        elsewhere="add the model that it was converted from; or, on a machine that has TensorFlow, run: python -m "
        "tf2onnx.convert --tflite {path} --output {stem}.onnx; then `gateway model add {stem}.onnx`",
    ),
    Framework(
        key="sklearn",
        content="a pickle of scikit-learn",
        modules=("sklearn",),
        opener="sklearn_pickle",
        needs=("sklearn", "skl2onnx"),
        elsewhere=_SKLEARN,
        code="loading a pickle can run any code",
        images=_SKLEARN_IMAGES,
        has_labels=True,
    ),
    Framework(
        key="skops",
        content="a model of skops",
        members=frozenset({"schema.json"}),
        opener="skops_pipeline",
        needs=("sklearn", "skl2onnx", "skops"),
        elsewhere=_SKLEARN,
        images=_SKLEARN_IMAGES,
        has_labels=True,
    ),
)


def framework_named(key: str) -> Framework | None:
    """The framework whose files are sources of kind `key`; None for other kinds."""
    return next((framework for framework in FRAMEWORKS if framework.key == key), None)


def with_members(names: Iterable[str]) -> Framework | None:
    """The framework whose zips or folders have these files."""
    there = set(names)
    return next((framework for framework in FRAMEWORKS if framework.members and framework.members <= there), None)


def with_modules(names: Iterable[str]) -> Framework | None:
    """The framework whose pickles name these, as module.name."""
    there = [f"{name}." for name in names]

    def named(framework: Framework) -> bool:
        return any(name.startswith(f"{module}.") for module in framework.modules for name in there)

    return next(filter(named, FRAMEWORKS), None)


def with_bytes(path: Path, head: bytes) -> Framework | None:
    """The framework whose files begin with `head`, the first bytes of a file, and have its text."""
    for framework in FRAMEWORKS:
        offset, first = framework.first
        if first and head[offset:].startswith(first) and _contains(path, framework.contains):
            return framework
    return None


def _contains(path: Path, text: bytes) -> bool:
    if not text:
        return True
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0
