from hypothesis import given
from hypothesis import strategies as st

from gateway_plugins.oip.grpc_api.blocks import BLOCK_BYTES, Blocks


def pieces(lengths: list[int]) -> list[bytes]:
    return [bytes((number + place) % 256 for place in range(length)) for number, length in enumerate(lengths)]


@given(st.lists(st.sampled_from([0, 1, 5, 100, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES]), max_size=8), st.data())
def test_bytes_leave_in_the_order_of_their_arrival(lengths: list[int], data):
    blocks, whole = Blocks(), b""
    for piece in pieces(lengths):
        blocks.append(piece)
        whole += piece
        assert blocks.first(5) == whole[:5]
        nbytes = data.draw(st.integers(0, len(whole)))
        assert blocks.take(nbytes) == whole[:nbytes]
        whole = whole[nbytes:]
        assert len(blocks) == len(whole)


def test_small_pieces_share_a_block():
    """A client that sends a byte in each frame would otherwise cost more than what is counted."""
    blocks = Blocks()
    for _ in range(2 * BLOCK_BYTES):
        blocks.append(b"x")
    assert len(blocks._blocks) == 2
