"""Other servers of the same network, measured beside this one: `make bench ARGS=--peers`."""
