"""A retry budget: it limits retries, so that they do not overload a failing server."""


class RetryBudget:
    """Each request earns a fraction of a retry, and each retry costs one; a reserve covers the loss of a server."""

    def __init__(self, earned: float = 0.2, reserve: float = 256.0) -> None:
        self._earned = earned
        self._reserve = reserve
        self._balance = reserve

    def deposit(self) -> None:
        """Count a request."""
        self._balance = min(self._reserve, self._balance + self._earned)

    def withdraw(self) -> bool:
        """Whether a retry is allowed now; if so, it is paid for."""
        if self._balance < 1:
            return False
        self._balance -= 1
        return True
