"""The images that calibrate int8, and the checks whether a model can be quantized."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.errors import UserError
from gateway_models.networks.isolation import Report
from gateway_models.networks.onnx_runner import import_onnx
from gateway_models.proof.image_files import NoImages, image_files
from gateway_models.proof.parity import pil_image
from gateway_models.proof.variants import TuneStep
from gateway_models.repository.entry import Entry
from gateway_models.repository.preprocessing import AS_PIXELS, reference_transforms
from gateway_models.repository.spec import Format, ImageTensor

MAX_IMAGES = 256
"""The images that are run through a network at most; more hardly change the ranges."""


class NotQuantized(UserError):
    """A model cannot be quantized to int8; the message names what to do first."""


def check_int8(entry: Entry, stages: Sequence[TuneStep], calibrate: Path | None) -> None:
    """Raise UserError where int8 is among `stages` but the model or the arguments do not allow it."""
    if TuneStep.INT8 not in stages:
        if calibrate is not None:
            raise NotQuantized("--calibrate is for int8: add --try int8, or leave --try out")
        return
    if calibrate is None:
        raise NotQuantized(
            "--try int8 needs --calibrate FOLDER: images like those to be classified, to calibrate the range of each "
            "tensor; some hundreds, of every class"
        )
    if entry.format is Format.FUNCTION:
        raise NotQuantized(f"int8 is for ONNX, and {entry.name} is a Python function, which chooses its own precision")
    if entry.format is not Format.ONNX and (TuneStep.FORMATS not in stages or len(entry.versions) > 1):
        # Versions share one configuration and therefore one format.
        also = "" if len(entry.versions) > 1 else "add --try formats, which tries it as ONNX too, or "
        raise NotQuantized(
            f"int8 is for ONNX, and {entry.name} is served as {entry.format.value}: {also}add it under another name "
            f"with `gateway model add {entry.spec.source} --format onnx`"
        )
    if entry.embedding_size:
        raise NotQuantized(
            f"{entry.name} gives embeddings, and int8 would make them differ from those stored before: add it "
            "under another name without --embeddings"
        )
    if entry.serving.tensorrt:
        raise NotQuantized(f"{entry.name} is written for TensorRT; int8 is for ONNX Runtime on a CPU")
    import_onnx()


def calibration_files(folder: Path, measured: Sequence[Path], report: Report) -> list[Path]:
    """Choose images evenly from a folder and its subfolders; raises NoImages.

    The images in `measured` are left out: accuracy on the calibration images would be biased.
    """
    taken = {path.resolve() for path in measured}
    found = [path for path in image_files([folder]) if path.resolve() not in taken]
    if not found:
        raise NoImages(
            f"all images of {folder} are also measured on: give --calibrate other images, or measure on "
            "only some of them"
        )
    step = max(1.0, len(found) / MAX_IMAGES)
    files = [found[int(number * step)] for number in range(min(len(found), MAX_IMAGES))]
    report(f"calibrating int8 with {len(files)} of {len(found)} images")
    return files


def calibration_images(files: Sequence[Path], entry: Entry) -> Iterator[NDArray[np.float32 | np.uint8]]:
    """Each image [1, 3, side, side] in the served network's input format; raises NoImages if none can be read.

    Files that are not images are skipped.
    """
    pixels = entry.tensor is ImageTensor.UINT8
    preprocessing = entry.preprocessing
    if pixels:
        preprocessing = replace(preprocessing, mean=AS_PIXELS["mean"], std=AS_PIXELS["std"])
    transforms = reference_transforms(preprocessing)
    readable = 0
    for path in files:
        try:
            image = pil_image(path)
        except OSError:
            continue
        readable += 1
        batch = transforms(image)[None].numpy()
        yield batch.round().clip(0, 255).astype(np.uint8) if pixels else batch
    if not readable:
        raise NoImages("none of the calibration images can be read")
