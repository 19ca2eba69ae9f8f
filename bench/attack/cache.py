"""Pictures that are after another client's answer."""

import io
import json

import numpy as np
import skimage.data
from numpy.typing import NDArray
from PIL import Image

from bench.attack.collisions import colliding_jpegs, start
from bench.attack.target import MULTIPART, Attack, Target, attacks_of, form, receive
from gateway.triton.contract import ENSEMBLE_MODEL, RAW_IMAGE


def pictures_of_one_key(target: Target) -> str:
    """A cat and a cup that are crafted to share a key in Triton's response cache."""
    cat, cup = (_small(picture) for picture in (skimage.data.chelsea(), skimage.data.coffee()))
    usual = [_label(target, picture) for picture in (cat, cup)]
    crafted = [_label(target, picture) for picture in colliding_jpegs(cat, cup, start(ENSEMBLE_MODEL, 1, RAW_IMAGE))]
    if crafted != usual:
        raise WrongAnswerShared(f"{usual} became {crafted}")
    return f"200 {', '.join(usual)}"


class WrongAnswerShared(Exception):
    """One picture got another one's answer."""


def _small(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).resize((224, 224)).save(file, "JPEG", quality=95)
    return file.getvalue()


def _label(target: Target, picture: bytes) -> str:
    body = b"".join(form([picture]))
    head = (
        f"POST /predict?top_k=1 HTTP/1.1\r\nHost: x\r\nContent-Type: {MULTIPART}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with target.connect() as connection:
        connection.sendall(head.encode() + body)
        answer = json.loads(receive(connection).partition(b"\r\n\r\n")[2])
    return str(answer["results"][0]["predictions"][0]["label"])


ATTACKS: list[Attack] = attacks_of(pictures_of_one_key)
