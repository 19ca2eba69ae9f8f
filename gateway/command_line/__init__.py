"""The `gateway` command: it finds its commands by entry points, and has what several commands share."""
