"""The `gateway` command and what it prints."""
