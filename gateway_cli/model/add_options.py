"""The options of `gateway model add`, each with its line of --help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway_models.networks.functions import INPUTS
from gateway_models.repository.entry import Decode, Format, ImageTensor, Precision


class Written(StrEnum):
    """The values of --format: the formats, and two that are refused with an alternative."""

    TORCHSCRIPT = Format.TORCHSCRIPT.value
    ONNX = Format.ONNX.value
    EXPORTED = Format.EXPORTED.value
    FUNCTION = Format.FUNCTION.value
    TENSORRT = "tensorrt"
    AOTI = "aoti"


PREPROCESSING, SERVING = "How images were prepared in training", "How Triton runs it"

ModelSource = Annotated[
    str,
    typer.Argument(
        help="A torch.export, TorchScript or ONNX file, a Hugging Face folder, torchvision:ARCH, timm:ARCH, "
        "huggingface:OWNER/NAME, or a Python function, FILE.py:NAME.",
        show_default=False,
    ),
]
ModelName = Annotated[str, typer.Option("--name", help="Name under which clients call the model.", show_default=False)]
Labels = Annotated[
    Path | None,
    typer.Option("--labels", help="File with one label per line, in the order of the classes.", dir_okay=False),
]
Like = Annotated[
    str | None,
    typer.Option(
        "--like",
        help="Prepare images as for these torchvision weights, e.g. ResNet50_Weights.IMAGENET1K_V2.",
        rich_help_panel=PREPROCESSING,
    ),
]
Resize = Annotated[
    str | None,
    typer.Option(
        "--resize", help="Shorter side, or height,width; by default the crop's.", rich_help_panel=PREPROCESSING
    ),
]
Crop = Annotated[int | None, typer.Option("--crop", help="Side of the centre crop.", rich_help_panel=PREPROCESSING)]
Mean = Annotated[
    str | None, typer.Option("--mean", help="R,G,B on a scale from 0 to 1.", rich_help_panel=PREPROCESSING)
]
Std = Annotated[str | None, typer.Option("--std", help="R,G,B on a scale from 0 to 1.", rich_help_panel=PREPROCESSING)]
Interpolation = Annotated[
    str | None,
    typer.Option("--interpolation", help="bilinear (default), bicubic, …", rich_help_panel=PREPROCESSING),
]
ResizeLibrary = Annotated[
    str | None,
    typer.Option(
        "--resize-library",
        help="Library that resizes: pillow (default), with the pixels of the installed Pillow, or torch.",
        rich_help_panel=PREPROCESSING,
    ),
]
Preprocessing = Annotated[
    Path | None,
    typer.Option(
        "--preprocessing",
        help="A JSON file with these options, or Hugging Face's preprocessor_config.json.",
        dir_okay=False,
        rich_help_panel=PREPROCESSING,
    ),
]
WeightsFile = Annotated[
    str | None,
    typer.Option("--weights", help="For torchvision:ARCH and timm:ARCH: a weights file instead of a download."),
]
Include = Annotated[
    list[Path] | None,
    typer.Option("--include", help="For FILE.py:NAME, a file or folder that it imports or reads; may be repeated."),
]
FunctionInput = Annotated[
    str,
    typer.Option(
        "--input",
        help=f"Input of FILE.py:NAME, if it has no annotation: {', '.join(INPUTS)}.",
        show_default=False,
    ),
]
ScoresOutput = Annotated[
    str,
    typer.Option(
        "--output", help="Which of several outputs are the scores: a name, or a number from 0.", show_default=False
    ),
]
Features = Annotated[
    str,
    typer.Option(
        "--features",
        help="Embeddings for POST /embed: auto for the input of the last linear layer, or the name of a layer.",
        show_default=False,
    ),
]
Sha256 = Annotated[
    str | None,
    typer.Option("--sha256", help="For a SOURCE or --weights that is a URL: its checksum.", show_default=False),
]
ComputePrecision = Annotated[
    Precision, typer.Option("--precision", help="Precision to compute in.", rich_help_panel=SERVING)
]
StorageFormat = Annotated[
    Written | None,
    typer.Option("--format", help="Storage format; by default that of the source.", rich_help_panel=SERVING),
]
Instances = Annotated[
    int | None,
    typer.Option(
        "--instances",
        help="Processes that run the network; by default two, or one where cores or memory are few.",
        rich_help_panel=SERVING,
        show_default=False,
    ),
]
PreprocessorInstances = Annotated[
    int | None,
    typer.Option(
        "--preprocessor-instances",
        help="Processes that decode, each on one core; `gateway capacity` computes how many. Default: as --instances.",
        rich_help_panel=SERVING,
        show_default=False,
    ),
]
Gpus = Annotated[
    str,
    typer.Option(
        "--gpus", help="GPUs to use, such as 0,1; by default every GPU, or else the CPU.", rich_help_panel=SERVING
    ),
]
MaxBatchSize = Annotated[
    int, typer.Option("--max-batch-size", help="Maximum number of images in a batch.", rich_help_panel=SERVING)
]
Preferred = Annotated[
    str | None,
    typer.Option("--preferred", help="Batch sizes to form, such as 8,16,32; by default 4,8.", rich_help_panel=SERVING),
]
QueueDelayUs = Annotated[
    int,
    typer.Option(
        "--queue-delay-us",
        help="Longest wait for such a batch, in µs: on a GPU, 1000 forms larger batches.",
        rich_help_panel=SERVING,
    ),
]
LargeJpegs = Annotated[
    Decode,
    typer.Option(
        "--decode",
        help="Large JPEGs: exact, or fast, which moves scores by some 0.01; `evaluate` measures both.",
        rich_help_panel=SERVING,
    ),
]
Tensor = Annotated[
    ImageTensor | None,
    typer.Option(
        "--tensor",
        help="Input of the network: normalised fp32 (default), or uint8 pixels, which it then normalises itself.",
        show_default=False,
        rich_help_panel=SERVING,
    ),
]
Tensorrt = Annotated[
    bool,
    typer.Option(
        "--tensorrt",
        help="With --format onnx: NVIDIA's ONNX Runtime backend runs it with TensorRT if there is a GPU.",
        rich_help_panel=SERVING,
    ),
]
Pixels = Annotated[
    bool,
    typer.Option(
        "--pixels",
        help="The network takes pixels of 0 to 255 and normalises them itself, instead of --mean and --std.",
        rich_help_panel=PREPROCESSING,
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="For FILE.py:NAME: its code may run here and in Triton. For a .pt2 file: its pickled code may run.",
    ),
]
Grayscale = Annotated[
    bool,
    typer.Option(
        "--grayscale",
        help="The network takes one channel; --mean and --std are one number each.",
        rich_help_panel=PREPROCESSING,
    ),
]
Offline = Annotated[
    bool,
    typer.Option("--offline", help="For huggingface:OWNER/NAME: use only the local cache, without network access."),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Compute repeated requests again instead of caching responses.", rich_help_panel=SERVING
    ),
]
CacheClassifier = Annotated[
    bool,
    typer.Option(
        "--cache-classifier",
        help="Also cache the network's output, which serves the same image in another encoding.",
        rich_help_panel=SERVING,
    ),
]
Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Also write the stateful model for its streams, if it is missing.",
        rich_help_panel=SERVING,
    ),
]
SequenceModel = Annotated[
    str,
    typer.Option(
        "--sequence-model",
        help="A stateful model of your own for its streams, a folder of the repository.",
        show_default=False,
        rich_help_panel=SERVING,
    ),
]
MultiLabel = Annotated[bool, typer.Option("--multi-label", help="Give each class a separate probability (sigmoid).")]
NewVersion = Annotated[
    int | None,
    typer.Option("--version", help="Add a version to an existing model, without putting it into use."),
]
