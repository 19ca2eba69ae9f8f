"""Everything that knows Triton: its gRPC interface, its health, and the server out of the PyPI wheel."""
