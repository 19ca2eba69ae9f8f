"""Compare the installed exact_resize with the installed Pillow: what is run where its wheels are built.

Every filter by every instruction set of this processor, on noise. tests/native has the tests.
"""

import sys

import exact_resize
import numpy as np
import PIL
from PIL import Image

SOURCE = (300, 451)
TARGETS = ((224, 224), (61, 700))


def main() -> None:
    """End with a sentence at the first pixel that differs."""
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (*SOURCE, 3), dtype=np.uint8)
    release = (int(PIL.__version__.split(".")[0]), int(PIL.__version__.split(".")[1]))
    for height, width in TARGETS:
        for name in exact_resize.FILTERS:
            expected = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling[name.upper()]))
            for instructions in exact_resize.INSTRUCTIONS:
                found = np.empty((height, width, 3), np.uint8)
                exact_resize.resize(image, found, (height, width), filter=name, pillow=release, by=instructions)
                if not np.array_equal(found, expected):
                    sys.exit(
                        f"error: {name} to {height} x {width} by {instructions} differs from Pillow {PIL.__version__}"
                    )
    print(f"equal to Pillow {PIL.__version__}, by {', '.join(exact_resize.INSTRUCTIONS)}")  # noqa: T201  # for the log


if __name__ == "__main__":
    main()
