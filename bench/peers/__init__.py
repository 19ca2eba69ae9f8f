"""Other servers of the same network, compared with this one: `make bench ARGS=--peers`."""
