"""Damaged files, requests and streams, at random: `make fuzz`."""
