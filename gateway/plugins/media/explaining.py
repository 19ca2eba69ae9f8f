"""The parameters and the result of an explanation, and the scores of its masked images as they arrive."""

import asyncio
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.errors import (
    DamagedImage,
    GatewayError,
    InferenceFailed,
    TooCostly,
    UndecodableImage,
)
from gateway.inference.request import Image, within
from gateway.inference.request_spec import Report
from gateway.inference.result import Result, Row
from gateway.ingest.decoder_process import Job
from gateway.ingest.image_formats import Header, Size, expected_frame_seconds, memory_limit, shrunk_bytes
from gateway.ingest.inspection import require_decoders
from gateway.ingest.resizing import TensorInput
from gateway.plugins.media.heat_map import MAP_SIDE, OVERLAY_SIDE, HeatMap, heat_values

MAX_SIDE = 384
"""Shorter side in pixels of a masked image, if the input size of its model is unknown."""
CELLS_BYTES = 4 * MAP_SIDE**2
"""Bytes of the visibility of the heat map's cells in one copy."""
WORK_BYTES = 16
"""Bytes of memory for each byte of the decoded image while a copy is made: arithmetic is in fp32."""
MAX_OVERLAY_BYTES = 4 * OVERLAY_SIDE**2 + 64 * 1024
"""Bytes of an overlay: its pixels, and the overhead of chunks, filters and deflate for incompressible pixels."""


@dataclass(slots=True, kw_only=True, eq=False)
class ExplainedResult(Result):
    """The result of a file in a request for an explanation: which parts of the image carry the score of a class."""

    class_id: int
    score: float
    """The score of the class for the image itself."""
    masks: int
    heat: HeatMap


class MaskedCopies:
    """Explains the score of a class by `masks` copies: None is the top-1 class. See request_spec.Expansion.

    TooCostly is the error of a file whose masked copies have more than `max_bytes` together.
    """

    def __init__(self, masks: int, max_bytes: int, class_id: int | None = None) -> None:
        self.masks = masks
        self.class_id = class_id
        self._max_bytes = max_bytes

    def single(self, report: Report) -> Report:
        """A file that cannot be read has an error."""
        return report

    async def run(self, image: Image) -> bool:
        """Classify masked copies of an image; the result is the heat map of a class, or the first error of a copy."""
        image.report(image, await within(image.deadline, self._explained(image)))
        return True

    async def _explained(self, image: Image) -> Result:
        service, header = image.request.service, image.header
        assert header is not None
        require_decoders(service.limits)
        size = await image.decoded_size(MAX_SIDE)
        # The masks cover the whole image, as large as a preprocessor makes it before the crop.
        whole = size.resize if isinstance(size, TensorInput) else size
        nbytes = shrunk_bytes(header, size)
        total_bytes = (self.masks + 1) * nbytes
        if total_bytes > self._max_bytes:
            raise TooCostly(
                f"The masked images would have {total_bytes:,} bytes, and {self._max_bytes:,} are allowed: ask for "
                f"fewer masks.",
                limit="max_masked_bytes",
                value=self._max_bytes,
            )
        scores = MaskScores(self)
        ppm, damaged = await service.decoders.decode(image.upload.data, header, whole, image.request.account)
        if damaged and image.spec.strict:
            raise DamagedImage
        copies = Copies(image, header, ppm, size)

        async def make() -> tuple[bytes, Report]:
            return await copies.next(), scores.begin()

        for number in range(self.masks + 1):
            if number:
                await image.charge()
            await image.add(await image.request.permit(nbytes, image.deadline), make)
            # A model that fails, or a class that it does not have, costs one image.
            await scores.wait(most_missing=self.masks)
        values = await scores.wait(most_missing=0)
        heat = await copies.draw(values)
        assert scores.class_id is not None
        file = image.result(Row(damaged=damaged, model_version=scores.model_version))
        return ExplainedResult(
            file.index,
            file.filename,
            file.width,
            file.height,
            file.row,
            class_id=scores.class_id,
            score=float(values[0]),
            masks=self.masks,
            heat=heat,
        )


class Copies:
    """The masked copies of an image, made in the slots of all images."""

    def __init__(self, image: Image, header: Header, ppm: bytes, size: Size) -> None:
        self._image, self._header, self._ppm, self._size = image, header, ppm, size
        self._visible: list[bytes] = []
        """For each copy so far, how visible each cell of the heat map is."""

    async def next(self) -> bytes:
        """The next copy, of which number 0 is the image itself; raises what `DecoderPool.decode` raises."""
        number, size = len(self._visible), self._size
        image_bytes = size.nbytes if isinstance(size, TensorInput) else len(self._ppm)
        made = await self._run("mask", self._ppm, image_bytes + CELLS_BYTES, number=number, size=size)
        self._visible.append(made[-CELLS_BYTES:])
        return made[:-CELLS_BYTES]

    async def draw(self, scores: NDArray[np.float32]) -> HeatMap:
        """The heat map of a class with these scores, fp32 [images]; raises what `DecoderPool.decode` raises."""
        shape = (len(scores) - 1, MAP_SIDE, MAP_SIDE)
        cells = np.frombuffer(b"".join(self._visible[1:]), np.float32)
        if cells.size != math.prod(shape):
            raise UndecodableImage  # the decoder was taken over
        values = heat_values(scores[1:].astype(np.float64), cells.reshape(shape).astype(np.float64))
        if not np.isfinite(values).all():
            raise UndecodableImage
        width, height = map(int, self._ppm.split(b"\n", 2)[1].split())
        drawn = self._run("draw", values.tobytes(), MAX_OVERLAY_BYTES, width=width, height=height)
        return HeatMap(values, await drawn)

    async def _run(self, name: str, data: bytes, most_bytes: int, **arguments: object) -> bytes:
        """The result of a function of gateway.plugins.media.in_decoder.masking, of at most `most_bytes`."""
        request, decoders = self._image.request, self._image.request.service.decoders
        limits = decoders.limits
        memory_bytes = min(memory_limit(self._header, WORK_BYTES * len(self._ppm)), limits.memory_bytes)
        job = Job(
            function=f"gateway.plugins.media.in_decoder.masking:{name}",
            arguments=arguments,
            memory_bytes=memory_bytes,
            most_result_bytes=most_bytes,
        )
        slot_bytes = min(WORK_BYTES * len(self._ppm), limits.memory_bytes)
        expected = expected_frame_seconds(self._header)
        return (await decoders.run(job, data, self._header, request.account, expected, slot_bytes))[1]


class MaskScores:
    """The scores of one class for an image and its masked copies, as they arrive.

    The image itself comes first, since the class may be its top-1 class. An error of any copy fails the explanation.
    """

    def __init__(self, copies: MaskedCopies) -> None:
        self._scores: NDArray[np.float32] = np.zeros(copies.masks + 1, np.float32)
        self._begun = 0
        self._missing = copies.masks + 1
        self._error: GatewayError | None = None
        self._changed = asyncio.Event()
        self.class_id = copies.class_id
        self.model_version = ""

    def begin(self) -> Report:
        """Returns the function for the result of the next image."""
        index = self._begun
        self._begun += 1

        def take(_: Image, result: Result) -> None:
            try:
                self._scores[index] = self._score_of(result)
            except GatewayError as error:
                self._error = self._error or error
            self._missing -= 1
            self._changed.set()

        return take

    async def wait(self, *, most_missing: int) -> NDArray[np.float32]:
        """The scores, when at most `most_missing` are missing; raises the first error of an image immediately."""
        while self._error is None and self._missing > most_missing:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        return self._scores

    def _score_of(self, result: Result) -> float:
        """The score of the class; raises the image's error, or InferenceFailed if the score is not a number."""
        if result.error is not None:
            raise result.error
        if (scores := result.row.scores) is None:
            raise UndecodableImage
        if self.class_id is None:
            self.class_id = int(scores.argmax())
        self.model_version = self.model_version or result.row.model_version
        if self.class_id >= len(scores):
            raise InferenceFailed
        score = float(scores[self.class_id])
        if not np.isfinite(score):
            raise InferenceFailed
        return score
