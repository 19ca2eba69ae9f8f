"""Triton without Docker: fetch, start and supervise the server; check the machine and its settings."""
