"""The `gateway` command: it finds its commands by entry points, and has their shared code."""
