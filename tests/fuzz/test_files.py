"""Damaged files of every form, in the steps that the service takes."""

import os
import random

import pytest

from gateway.errors import ImageError
from gateway.ingest.image_formats import ImageFormat
from gateway.ingest.inspection import check_size, for_triton, inspect, needs_decoding
from tests.fuzz.mutations import mutate
from tests.gateway.decoder.pools import decoders
from tests.gateway.ingest.reading import AUTO, limits
from tests.samples import samples

LIMITS = limits(max_image_pixels=1_000_000)
SEED = int(os.environ.get("FUZZ_SEED", "20240601"))


@pytest.mark.parametrize(
    "count", [pytest.param(400, marks=pytest.mark.slow), pytest.param(20_000, marks=pytest.mark.long)]
)
async def test_damaged_file_is_refused_or_has_the_size_of_its_header(count):
    """What is passed on may not end a decoder: the preprocessor decodes it in the same way."""
    files = [one.data for one in samples(67, 45)]
    async with decoders() as pool:
        for number in range(count):
            rng = random.Random(f"{SEED} {number}")
            data, account = mutate(rng, rng.choice(files), files), pool.account()
            (process,) = pool._idle
            info = None
            try:
                info = inspect(data, LIMITS)
                if isinstance(info, ImageFormat):
                    info = await pool.read_header(data, info, account)
                    check_size(info, LIMITS)
                payload = for_triton(data, info)
                decoded = await pool.decode(payload, info, 16_384, account)
            except ImageError:
                if info is not None and not isinstance(info, ImageFormat) and not needs_decoding(info, AUTO):
                    assert process.alive(), f"seed {SEED}, number {number}"
            else:
                head = b"P6\n%d %d\n255\n" % (info.width, info.height)
                assert decoded.pixels.startswith(head), f"seed {SEED}, number {number}"
                assert len(decoded.pixels) == len(head) + 3 * info.width * info.height
