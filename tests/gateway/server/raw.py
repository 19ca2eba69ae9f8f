"""Clients that send what no HTTP client would, or that leave amid their requests."""

import contextlib
import socket
import struct


def exchange(port: int, sent: bytes, *, resets: bool = False) -> bytes:
    """What comes back until the server closes the connection; a client that resets reads nothing."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(sent)
        if resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return received
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)
            while data := client.recv(65_536):
                received += data
    return received
