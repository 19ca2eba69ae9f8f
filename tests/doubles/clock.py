"""A clock that tests move."""


class Clock:
    """Returns its seconds, which a test changes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds
