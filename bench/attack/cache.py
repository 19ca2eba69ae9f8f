"""Images that try to get another client's answer."""

import json

import numpy as np
import skimage.data
from numpy.typing import NDArray
from PIL import Image

from bench.attack.collisions import colliding_jpegs, start
from bench.attack.target import Attacks, PromiseBroken, Target, raw_post, receive
from bench.photos import as_jpeg
from gateway.triton.contract import ENSEMBLE_MODEL, RAW_IMAGE

ATTACKS = Attacks()


@ATTACKS.add()
def pictures_of_one_key(target: Target) -> str:
    """A cat and a cup that are crafted to share a key in Triton's response cache."""
    cat, cup = (_small(picture) for picture in (skimage.data.chelsea(), skimage.data.coffee()))
    usual = [_label(target, picture) for picture in (cat, cup)]
    crafted = [_label(target, picture) for picture in colliding_jpegs(cat, cup, start(ENSEMBLE_MODEL, 1, RAW_IMAGE))]
    if crafted != usual:
        raise PromiseBroken(f"{usual} became {crafted}")
    return f"200 {', '.join(usual)}"


def _small(pixels: NDArray[np.uint8]) -> bytes:
    return as_jpeg(Image.fromarray(pixels).resize((224, 224)), quality=95)


def _label(target: Target, picture: bytes) -> str:
    with target.connect() as connection:
        connection.sendall(raw_post("/predict?top_k=1", [picture]))
        answer = json.loads(receive(connection).partition(b"\r\n\r\n")[2])
    return str(answer["results"][0]["predictions"][0]["label"])
