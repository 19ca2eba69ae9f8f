"""What a picture shows by Pillow: what the service is held to."""

import numpy as np
from PIL import Image, ImageOps


def shown(picture: Image.Image) -> Image.Image:
    """The first frame as RGB of 8 bits, upright.

    As torchvision's datasets read it (`convert("RGB")`), but for two things that the service does on purpose: white
    shows through where it is transparent, and gray of 16 bits is scaled, where Pillow cuts it off at 255.
    """
    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith("I;16"):
        upright = Image.fromarray((np.asarray(upright) / 257).round().astype(np.uint8))
    elif upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, (255, 255, 255, 255))
        upright = Image.alpha_composite(white, upright.convert("RGBA"))
    return upright.convert("RGB")
