"""Retries cover the loss of a server, and never overload a failing one."""

from gateway.triton.triton_backend import RetryBudget


def allowed(budget: RetryBudget) -> int:
    """How many retries are allowed in a row."""
    count = 0
    while budget.withdraw():
        count += 1
    return count


def test_new_budget_has_its_reserve():
    budget = RetryBudget(reserve=3)
    assert allowed(budget) == 3
    assert not budget.withdraw()


def test_request_earns_its_fraction_of_a_retry():
    budget = RetryBudget(earned=0.25, reserve=8)
    allowed(budget)
    for _ in range(3):
        budget.deposit()
    assert not budget.withdraw()
    budget.deposit()
    assert allowed(budget) == 1


def test_balance_never_exceeds_the_reserve():
    budget = RetryBudget(earned=0.5, reserve=2)
    for _ in range(1_000):
        budget.deposit()
    assert allowed(budget) == 2


def test_retries_are_limited_when_every_request_fails():
    budget = RetryBudget(earned=0.25)
    allowed(budget)
    retries = 0
    for _ in range(4_000):
        budget.deposit()
        retries += budget.withdraw()
    assert retries == 1_000
