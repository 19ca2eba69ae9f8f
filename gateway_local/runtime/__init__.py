"""The Triton that runs without Docker: the wheel's, or the one of a container's image."""
