"""Bodies that are read before anything is done with them."""

from gateway.api.body import Body
from gateway.errors import RequestTooLarge


async def read_whole(body: Body, most: int, limit: str) -> bytes:
    """The whole of a body of at most `most` bytes, which are counted; raises RequestTooLarge, which names `limit`."""
    pieces: list[bytes] = []
    nbytes = body.announced_bytes
    held = 0
    while nbytes <= most:
        piece = await anext(body, None)
        if piece is None:
            return b"".join(pieces)
        pieces.append(piece)
        held += len(piece)
        body.hold(held)
        nbytes = max(nbytes, held)
    raise RequestTooLarge(f"The body may have at most {most:,} bytes.", limit=limit, value=most)
