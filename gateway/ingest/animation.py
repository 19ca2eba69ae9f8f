"""The frames of an animated picture, by Pillow; for `decoders.child`, whose process may be lost."""

import warnings
from collections.abc import Iterator

from gateway.errors import UndecodableImage
from gateway.ingest import pillow
from gateway.ingest.decoding import Pixels
from gateway.ingest.formats.gif import count_frames
from gateway.ingest.frames import MOST_IN_FILE
from gateway.ingest.image_info import ImageFormat, ImageInfo

_UNTOLD_SECONDS = 0.1
"""How long a frame is shown whose file says 0, as browsers do it."""


class Animation:
    """An inspected, animated picture, whose first frame comes next; raises UndecodableImage."""

    def __init__(self, data: bytes, info: ImageInfo) -> None:
        self._info = info
        try:
            with warnings.catch_warnings(action="ignore"):
                self._picture = pillow.opened(data, info)
        except (MemoryError, UndecodableImage):
            raise
        except Exception as exc:  # whatever a plugin makes of a stranger's bytes
            raise UndecodableImage from exc
        is_gif = info.format is ImageFormat.GIF
        told = count_frames(data, MOST_IN_FILE) if is_gif else getattr(self._picture, "n_frames", 1)
        self.total: int | None = max(told, 1)
        """How many frames it has, or says that it has."""

    def walk(self) -> Iterator[tuple[int, float]]:
        """Come to one frame after the other: its number, and when it is shown. Raises UndecodableImage."""
        seconds = 0.0
        for index in range(self.total or 1):
            try:
                with warnings.catch_warnings(action="ignore"):
                    self._picture.seek(index)
                    # A frame may reach beyond the screen, which grows then.
                    pillow.check_size(self._picture, self._info)
                    self._picture.load()
            except (MemoryError, UndecodableImage):
                raise
            except Exception as exc:  # whatever a plugin makes of a stranger's bytes
                raise UndecodableImage(f"Frame {index} of {self.total} cannot be decoded.") from exc
            told = self._picture.info.get("duration")
            yield index, seconds
            seconds += told / 1e3 if isinstance(told, int | float) and 0 < told < 1e9 else _UNTOLD_SECONDS

    def pixels(self) -> Pixels:
        """The frame that the walk stands at, RGB of 8 bits."""
        with warnings.catch_warnings(action="ignore"):
            return pillow.rgb(self._picture)
