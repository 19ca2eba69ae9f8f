"""A model as the user describes it: one object from the command line to the record next to the model.

A field of `ModelSpec` or `Serving` with an `Option` is an option of `gateway model add`, without other changes.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict

from gateway.errors import UserError
from gateway.triton.contract import EXACT, FAST
from gateway_local.cpu_network import CpuRuntime
from gateway_models.repository.after import AfterStep
from gateway_models.repository.card import read_description
from gateway_models.repository.option import IMAGES, SERVING, Option
from gateway_models.repository.preprocessing import Preprocessing

DEFAULT = "default"
"""Instead of a source: the model that comes with the project."""
PROMPT = "a photo of a {}"
MAX_PROMPTS = 100
PLAIN = "float32-nchw"
"""The preprocessor's output format."""
INPUTS = ("uint8-nhwc", "uint8-nchw", PLAIN, "float32-nhwc")
"""Input formats of networks: the type and the order of the dimensions."""
MAX_BATCH, MAX_INSTANCES, MAX_QUEUE_DELAY_US = 65_536, 64, 10_000_000


class Precision(StrEnum):
    """The type that the network computes in; its inputs and outputs stay fp32."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class OpenVino(StrEnum):
    """The type that OpenVINO computes in; the network's file stays as it is."""

    FP32 = "fp32"
    BF16 = "bf16"


class Format(StrEnum):
    """The file format of the network, which determines the Triton backend."""

    TORCHSCRIPT = "torchscript"
    ONNX = "onnx"
    FUNCTION = "function"
    """A folder: a model.py for Triton's Python backend, and the user's code."""

    @property
    def filename(self) -> str:
        """The file in a version's folder."""
        return {Format.TORCHSCRIPT: "model.pt", Format.ONNX: "model.onnx", Format.FUNCTION: "model.py"}[self]


class Decode(StrEnum):
    """How the gateway decodes large JPEGs: in full, or scaled down to at least four times the network's input."""

    EXACT = EXACT
    FAST = FAST


class ImageTensor(StrEnum):
    """The tensor between preprocessor and network: normalised images, or pixels that the network normalises."""

    FP32 = "fp32"
    UINT8 = "uint8"


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",") if part))
    except ValueError as exc:
        raise UserError(f"{text!r} must be whole numbers separated by commas") from exc


def read_prompts(texts: list[str]) -> tuple[str, ...]:
    """Templates of a zero-shot model's texts; raises UserError."""
    if wrong := [text for text in texts if "{}" not in text]:
        raise UserError(f"{wrong[0]!r} is no prompt: it needs {{}} where the label belongs, such as {PROMPT!r}")
    if len(texts) > MAX_PROMPTS:
        raise UserError(f"{len(texts)} prompts are more than {MAX_PROMPTS}")
    return tuple(texts)


def _input(text: str) -> str:
    if text not in INPUTS:
        raise UserError(f"{text!r} is not an input; use one of {', '.join(INPUTS)}")
    return text


@dataclass(frozen=True, slots=True)
class Serving:
    """How Triton runs a model."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    instances: Annotated[
        int | None, Option("Instances of the network, on each GPU; by default as many as fit the machine.", SERVING)
    ] = None
    """Not written if None: Triton gets a count that fits the machine on which it is started."""
    preprocessor_instances: Annotated[
        int | None, Option("Processes that decode, each on one core; by default as many as fit the machine.", SERVING)
    ] = None
    gpus: Annotated[
        tuple[int, ...],
        Option("GPUs to use, such as 0,1; by default every GPU, or else the CPU.", SERVING, type=str, read=_integers),
    ] = ()
    max_batch_size: Annotated[int, Option("Maximum number of images in a batch.", SERVING)] = 64
    preferred: Annotated[
        tuple[int, ...] | None,
        Option("Batch sizes to form, such as 8,16,32; by default the device's.", SERVING, type=str, read=_integers),
    ] = None
    queue_delay_us: Annotated[
        int | None, Option("Longest wait for such a batch, in µs; by default none on a CPU, 1000 on a GPU.", SERVING)
    ] = None
    decode: Annotated[Decode, Option("Large JPEGs: exact, or fast (scores differ by some 0.01).", SERVING)] = (
        Decode.EXACT
    )
    tensorrt: Annotated[bool, Option("With --format onnx: TensorRT runs it on a GPU.", SERVING)] = False
    openvino: Annotated[
        OpenVino | None, Option("With --format onnx: OpenVINO runs it on a CPU, in this type.", SERVING, type=OpenVino)
    ] = None
    cpu_runtime: Annotated[
        CpuRuntime | None,
        Option("What runs TorchScript on a CPU; by default onnxruntime, if it agrees.", SERVING, type=CpuRuntime),
    ] = None
    cache: Annotated[
        bool,
        Option("Compute repeated requests again; cache none.", SERVING, flag="--no-cache", read=lambda off: not off),
    ] = True
    """Whether the ensemble's answers are cached: a hit skips every step."""
    sequence_model: Annotated[
        str, Option("Your stateful model for its streams, a folder of the repository.", SERVING)
    ] = ""
    """"" means the repository's default one, if it exists."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "decode", Decode(self.decode))
        object.__setattr__(self, "openvino", None if self.openvino is None else OpenVino(self.openvino))
        object.__setattr__(self, "cpu_runtime", None if self.cpu_runtime is None else CpuRuntime(self.cpu_runtime))
        for what, value, least, most in (
            ("the largest batch", self.max_batch_size, 1, MAX_BATCH),
            ("instances", self.instances, 1, MAX_INSTANCES),
            ("preprocessor instances", self.preprocessor_instances, 1, MAX_INSTANCES),
            ("the queue delay in µs", self.queue_delay_us, 0, MAX_QUEUE_DELAY_US),
        ):
            if value is not None and not least <= value <= most:
                raise UserError(f"{what}: {value} is not between {least:,} and {most:,}")
        wrong = [size for size in self.preferred or () if not 0 < size <= self.max_batch_size]
        if wrong:
            raise UserError(f"preferred batch size {wrong[0]} is not between 1 and the largest, {self.max_batch_size}")
        if any(gpu < 0 for gpu in self.gpus):
            raise UserError("GPUs are numbers from 0, as nvidia-smi lists them")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to add: the options of `gateway model add`, the payload of the job, and each version's record.

    `add` completes it. Then `source` is an absolute path or a name that needs no other context, `sha256` is the files'
    checksum, and `preprocessing`, `format` and `tensor` are known.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: Annotated[
        str,
        Option(
            "A torch.export, TorchScript, ONNX, Keras or scikit-learn file, a Hugging Face folder, torchvision:ARCH, "
            f"timm:ARCH, huggingface:OWNER/NAME, a function FILE.py:NAME, or {DEFAULT} (EfficientNet-Lite0).",
            flag="",
        ),
    ]
    name: Annotated[str, Option("Name under which clients call the model; by default the source's.")]
    labels: Annotated[Path | None, Option("File with one label per line, in the order of the classes.")] = None
    description: Annotated[
        str,
        Option(
            "A sentence for GET /models and the web page; by default from the source's README or description.",
            read=read_description,
        ),
    ] = ""
    example: Annotated[
        tuple[Path, ...],
        Option(
            "A JPEG or PNG to try on the web page, or a folder of classes; may be repeated. Visitors get it.",
            type=list[Path],
            read=tuple,
        ),
    ] = ()
    """A record has none: the pictures are next to it."""
    like: Annotated[
        str | None,
        Option("Prepare images as for these torchvision weights, e.g. ResNet50_Weights.IMAGENET1K_V2.", IMAGES),
    ] = None
    preprocessing: Annotated[
        Preprocessing | None, Option("A file of Hugging Face's, preprocessor_config.json.", IMAGES, type=Path)
    ] = None
    """If None: as in the existing versions, `like`, or the source."""
    resize_library: Annotated[str | None, Option("Library that resizes: pillow (default) or torch.", IMAGES)] = None
    pixels: Annotated[bool, Option("The network takes pixels of 0 to 255; without --mean and --std.", IMAGES)] = False
    grayscale: Annotated[
        bool, Option("The network takes one channel; --mean and --std are one number each.", IMAGES)
    ] = False
    weights: Annotated[
        str | None, Option("For torchvision:ARCH and timm:ARCH: a weights file instead of a download.")
    ] = None
    include: Annotated[
        tuple[Path, ...],
        Option("For FILE.py:NAME, a file or folder that it needs; may be repeated.", type=list[Path], read=tuple),
    ] = ()
    input: Annotated[
        str, Option(f"Input of a network, or of FILE.py:NAME without an annotation: {', '.join(INPUTS)}.", read=_input)
    ] = ""
    """"" where an ONNX graph or an annotation says it; by default float32-nchw."""
    output: Annotated[str, Option("Which of several outputs are the scores: a name, or a number from 0.")] = ""
    features: Annotated[
        bool, Option("Give embeddings for POST /embed: the input of the last linear layer.", flag="--embeddings")
    ] = False
    sha256: str | None = None
    precision: Annotated[Precision, Option("Precision to compute in.", SERVING)] = Precision.FP32
    format: Annotated[Format | None, Option("Storage format; by default the source's.", SERVING)] = None
    serving: Serving = field(default_factory=Serving)
    tensor: Annotated[
        ImageTensor | None, Option("Input: normalised fp32, or uint8 pixels; by default uint8 with a GPU.", SERVING)
    ] = None
    trust: Annotated[
        bool,
        Option(
            "The code of FILE.py:NAME may run here and in Triton; the code of a .pt2 file, pickle or Keras Lambda here."
        ),
    ] = False
    multi_label: Annotated[bool, Option("Give each class a separate probability (sigmoid).")] = False
    zero_shot: Annotated[
        Path | None, Option("For a CLIP-like model: a file with one label per line, in any words.")
    ] = None
    prompts: Annotated[
        tuple[str, ...],
        Option(
            f"For --zero-shot: a text with {{}} for the label, by default {PROMPT!r}; may be repeated.",
            flag="--prompt",
            type=list[str],
            read=read_prompts,
        ),
    ] = (PROMPT,)
    texts: tuple[str, ...] = ()
    """The labels of `zero_shot`."""
    after: AfterStep | None = None
    """The post-processing step of a version that `gateway model postprocess` or `calibrate` added."""
    version: Annotated[int | None, Option("Add a version to an existing model, without putting it into use.")] = None
    pixels_implied: bool = False
    """Whether `preprocessing` leaves pixels unchanged only because no mean and std were given."""
    own_processor: bool = False
    """Whether `preprocessing` comes from the source's files, and the code of transformers or timm is its reference."""
    processor: str = ""
    """The text of a file of transformers' processor, whose code is the reference of `preprocessing`; "" without one."""
    named: tuple[str, ...] = ()
    """The options that the user gave, also with their defaults; a record has none."""

    @property
    def prepared(self) -> Preprocessing:
        """The preprocessing of a completed spec."""
        assert self.preprocessing is not None
        return self.preprocessing

    @property
    def computes_in(self) -> Precision:
        """The precision in which it computes: OpenVINO can run a file of fp32 in bf16."""
        in_bf16 = self.precision is Precision.FP32 and self.serving.openvino is OpenVino.BF16
        return Precision.BF16 if in_bf16 else self.precision

    def check_gray(self) -> None:
        """Raise UserError where the channels of gray images would be normalised differently."""
        if self.grayscale and not self.prepared.is_gray:
            raise UserError(
                "--grayscale is for one channel, so --mean and --std are one number each: --mean 0.5 --std 0.25"
            )
