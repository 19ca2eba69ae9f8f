"""Models on demand: loaded when a request needs them, and unloaded for others; imported only if that is set."""
