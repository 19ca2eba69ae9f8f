"""Byte-mutation fuzzing of everything that reads an upload: `python -m tests.fuzz --seconds 60`."""
