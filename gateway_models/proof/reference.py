"""The reference decoding of an image with Pillow, which the service must match."""

import numpy as np
from PIL import Image, ImageOps


def shown(image: Image.Image) -> Image.Image:
    """The first frame as RGB of 8 bits, upright.

    As torchvision's datasets read it (`convert("RGB")`), with two deliberate exceptions: white
    shows through transparent pixels, and 16-bit gray is scaled, where Pillow clips it at 255.
    """
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        upright = Image.fromarray((np.asarray(upright) / 257).round().astype(np.uint8))
    elif upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, (255, 255, 255, 255))
        upright = Image.alpha_composite(white, upright.convert("RGBA"))
    return upright.convert("RGB")
