"""The photographs by which a network is quantized, and whether it can be."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.errors import UserError
from gateway_models.networks.isolation import Report
from gateway_models.networks.onnx_runner import import_onnx
from gateway_models.proof.image_files import NoPictures, image_files
from gateway_models.proof.parity import pil_image
from gateway_models.proof.variants import TuneStep
from gateway_models.repository.entry import Entry, Format, ImageTensor
from gateway_models.repository.preprocessing import AS_PIXELS, reference_transforms

MAX_PICTURES = 256
"""That are run through a network; more of them hardly change the ranges that are found."""


class NotQuantized(UserError):
    """A model that cannot be tried in int8 as it is; the message says how to get there."""


def check_int8(entry: Entry, stages: Sequence[TuneStep], calibrate: Path | None) -> None:
    """Raise UserError where int8 is to be tried and cannot be."""
    if TuneStep.INT8 not in stages:
        if calibrate is not None:
            raise NotQuantized("--calibrate is for int8: add --try int8, or leave --try out")
        return
    if calibrate is None:
        raise NotQuantized(
            "--try int8 needs --calibrate FOLDER: photos like those to be classified, by which the range of each "
            "number in the network is found; some hundreds, of every class"
        )
    if entry.format is Format.FUNCTION:
        raise NotQuantized(f"int8 is for ONNX, and {entry.name} is a Python function: which chooses its own precision")
    if entry.format is not Format.ONNX and (TuneStep.FORMATS not in stages or len(entry.versions) > 1):
        # Versions share one configuration, and so one format.
        also = "" if len(entry.versions) > 1 else "add --try formats, which tries it as ONNX too, or "
        raise NotQuantized(
            f"int8 is for ONNX, and {entry.name} is served as {entry.format.value}: {also}add it under another name "
            f"with `gateway model add {entry.versions[entry.in_use].source} --format onnx`"
        )
    if entry.features:
        raise NotQuantized(
            f"{entry.name} gives vectors too, which int8 would move away from those that are kept somewhere: add it "
            "under another name without --features"
        )
    if entry.serving.tensorrt:
        raise NotQuantized(f"{entry.name} is written for TensorRT; int8 is for ONNX Runtime on a CPU")
    import_onnx()


def calibration_files(folder: Path, measured: Sequence[Path], report: Report) -> list[Path]:
    """Images of a folder, spread evenly over it and its folders; raises NoPictures.

    Those that are `measured` afterwards are left out: how right a network is on what it was fitted to says little.
    """
    taken = {path.resolve() for path in measured}
    found = [path for path in image_files([folder]) if path.resolve() not in taken]
    if not found:
        raise NoPictures(
            f"all images of {folder} are those that variants are measured on: give --calibrate others, or measure on a "
            "part of them"
        )
    step = max(1.0, len(found) / MAX_PICTURES)
    files = [found[int(number * step)] for number in range(min(len(found), MAX_PICTURES))]
    report(f"calibrating int8 with {len(files)} of {len(found)} images")
    return files


def calibration_images(files: Sequence[Path], entry: Entry) -> Iterator[NDArray[np.float32 | np.uint8]]:
    """Each image [1, 3, side, side] as the served network gets it, one at a time; raises NoPictures at the end.

    What is no image is passed over.
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
        raise NoPictures("none of the images to calibrate by can be read")
