"""The hook for steps of an image: one that refuses images by their size."""

from collections.abc import Sequence

import numpy as np

from gateway.app import create_app
from gateway.errors import ImageTooLarge
from gateway.hooks import Plugin
from gateway.inference.steps import ImageTask, Step
from gateway.settings import Settings
from tests.asking import encode
from tests.doubles.backend import StubBackend
from tests.services import client_of_app


class SmallImages(Plugin):
    """Refuses images that are wider than 100 pixels."""

    def steps(self) -> Sequence[Step]:
        return (self.refuse_large,)

    async def refuse_large(self, image: ImageTask) -> None:
        if image.info.width > 100:
            raise ImageTooLarge(f"{image.upload.filename} is {image.info.width} pixels wide.")


def test_step_refuses_one_image_and_costs_no_other():
    large, small = (encode(np.zeros((80, width, 3), np.uint8), ".png") for width in (101, 100))
    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), [SmallImages])) as client:
        answer = client.post("/predict", files=[("f", ("a.png", large)), ("f", ("b.png", small))])
    refused, classified = answer.json()["results"]
    assert refused["error"] == {"code": "image_too_large", "message": "a.png is 101 pixels wide."}
    assert (classified["status"], refused["width"]) == ("ok", 101)
