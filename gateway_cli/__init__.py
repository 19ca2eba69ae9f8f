"""The `gateway` command: its options, and what it prints."""
