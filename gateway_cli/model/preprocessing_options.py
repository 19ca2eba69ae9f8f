"""Preprocessing from the options of `gateway model add`: how images were prepared in training."""

from pathlib import Path

from gateway_models.networks.model_source import SourceError
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway_models.repository.preprocessing_sources import from_file, numbers, whole


def preprocessing_of(
    file: Path | None,
    like: str | None,
    resize: str | None,
    crop: int | None,
    mean: str | None,
    std: str | None,
    interpolation: str | None,
    *,
    pixels: bool,
    grayscale: bool,
) -> Preprocessing | None:
    """The preprocessing that the options describe; None if only --like or nothing is given."""
    if pixels and (mean is not None or std is not None):
        raise SourceError(
            "--pixels leaves pixels as they are, and --mean and --std normalise them: use one or the other"
        )
    flags = {"--resize": resize, "--crop": crop, "--mean": mean, "--std": std, "--interpolation": interpolation}
    given = [flag for flag, value in flags.items() if value is not None]
    ways = [*(["--like"] if like else []), *(["--preprocessing"] if file else []), *given[:1]]
    if len(ways) > 1 and not (like and not given and not file):
        raise SourceError(f"{' and '.join(ways)} both describe how images were prepared in training: use one of them")
    if file:
        return from_file(file)
    if not given:
        return None
    missing = [flag for flag in ("--crop", *(() if pixels else ("--mean", "--std"))) if flags[flag] is None]
    if missing or crop is None:
        raise SourceError(
            f"{', '.join(given)} cannot fully describe how images were prepared in training: add {', '.join(missing)}"
        )
    return Preprocessing(
        resize_size=tuple(whole(side) for side in numbers(resize)) if resize else (crop,),
        crop_size=crop,
        interpolation=interpolation or "bilinear",
        mean=_channels(mean, grayscale=grayscale) if mean is not None else AS_PIXELS["mean"],
        std=_channels(std, grayscale=grayscale) if std is not None else AS_PIXELS["std"],
    )


def _channels(text: str, *, grayscale: bool) -> tuple[float, ...]:
    """One number for each channel of the image; a single number for gray is repeated three times."""
    found = numbers(text)
    return found * 3 if grayscale and len(found) == 1 else found
