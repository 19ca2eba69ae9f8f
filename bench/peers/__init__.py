"""Other ways to serve the same network over HTTP, to be measured beside this one: `make bench ARGS=--peers`."""
