"""What an operator sees while Triton and the API start, run and stop."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Say = Callable[[str], None]


class Display(Protocol):
    """Where progress and Triton's log go."""

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def log(self, line: str) -> None:
        """A line of Triton's log; called on a thread of its own."""
        ...

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """While something is awaited, which `text` names."""
        ...


class Lines:
    """Every line as it comes: for log collectors, and for those who ask for all."""

    def __init__(self, say: Say, log: Say) -> None:
        self.say = say
        self.log = log

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Said at once; nothing else would show that something is awaited."""
        self.say(text)
        return nullcontext()
