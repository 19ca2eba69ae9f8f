"""Commands about services of this machine, Triton without Docker, and a running gateway."""
