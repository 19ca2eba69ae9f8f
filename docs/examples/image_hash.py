"""A route for an average hash of each image, with the bodies and limits of POST /predict.

Entry point: hashes = "image_hash:Hashes".
"""

from contextlib import aclosing

from fastapi import APIRouter, Request

from gateway.hooks import Plugin
from gateway.images import FAULTS, REQUEST_BODY, decoded_images, traits

router = APIRouter(tags=["hash"])


@router.post("/hash", summary="Average hash", responses=FAULTS, openapi_extra={"requestBody": REQUEST_BODY})
@traits(takes_images=True)
async def average_hash(request: Request) -> list[str]:
    """An average hash of 64 bits for each image, in hexadecimal digits; empty for a file that is no image."""
    async with aclosing(decoded_images(request, max_side=64)) as images:
        return ["" if image.pixels is None else digest(image.pixels) async for image in images]


def digest(pixels):
    """16 hexadecimal digits: which of 8 by 8 cells are brighter than their mean."""
    height, width = (side // 8 * 8 for side in pixels.shape[:2])
    cells = pixels[:height, :width].mean(axis=2).reshape(8, height // 8, 8, width // 8).mean(axis=(1, 3))
    bits = "".join("1" if cell > cells.mean() else "0" for cell in cells.ravel())
    return f"{int(bits, 2):016x}"


class Hashes(Plugin):
    """Adds POST /hash."""

    def routers(self):
        return (router,)
