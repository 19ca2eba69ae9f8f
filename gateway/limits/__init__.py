"""Every limit on what clients may hold at once: images, bytes, connections, streams, decoders, processor time."""
