"""Batches of images of similar size."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.inference.planner import BatchPlanner


def planner(max_items: int = 4, max_bytes: int = 1_000) -> BatchPlanner[int]:
    return BatchPlanner(max_items, max_bytes, size=lambda item: item)


def drain(waiting: BatchPlanner[int]) -> list[list[int]]:
    batches = []
    while batch := waiting.take():
        batches.append(batch)
    return batches


def test_empty_planner_has_no_batch():
    assert planner().take() == []


def test_large_and_small_images_are_not_batched_together():
    waiting = planner(max_bytes=10**9)
    for size in (10, 1_000_000, 12, 14):
        waiting.add(size)
    assert sorted(map(tuple, drain(waiting))) == [(10, 12, 14), (1_000_000,)]


def test_groups_alternate():
    waiting = planner(max_items=1)
    for size in (100, 101, 102, 10):
        waiting.add(size)
    assert drain(waiting) == [[100], [10], [101], [102]]


@given(st.lists(st.integers(1, 5_000)), st.integers(1, 10), st.integers(1, 3_000))
def test_every_image_is_sent_once_within_the_bounds(sizes: list[int], max_items: int, max_bytes: int):
    waiting = planner(max_items, max_bytes)
    for size in sizes:
        waiting.add(size)
    assert len(waiting) == len(sizes)
    batches = drain(waiting)
    assert sorted(size for batch in batches for size in batch) == sorted(sizes)
    for batch in batches:
        assert len(batch) <= max_items
        padded = max(batch) * len(batch)
        assert len(batch) == 1 or padded <= max_bytes
        assert padded < 2 * sum(batch) or len(batch) == 1
