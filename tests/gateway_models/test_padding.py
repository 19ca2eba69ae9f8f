import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway_models.blocking_triton import pad


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_images_are_zero_padded_to_a_common_length(payloads):
    raw_image, raw_image_length = pad(payloads)
    longest = max(map(len, payloads))
    assert (raw_image.dtype, raw_image.shape) == (np.uint8, (len(payloads), longest))
    assert (raw_image_length.dtype, raw_image_length.shape) == (np.int32, (len(payloads), 1))
    for row, length, payload in zip(raw_image, raw_image_length[:, 0], payloads, strict=True):
        assert row[:length].tobytes() == payload
        assert not row[length:].any()
