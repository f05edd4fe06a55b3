"""Feed: numbered items, for readers that leave and come back."""

from __future__ import annotations

import math
from contextlib import aclosing
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from trio_lanes import LaneError
from trio_lanes.agents import Feed, FeedGapError

pytestmark = pytest.mark.both_doors


async def collect(feed: Feed[Any], after: int = -1) -> list[tuple[int, Any]]:
    async with aclosing(feed.read(after)) as items:
        return [item async for item in items]


async def test_items_are_numbered_from_0_and_every_reader_gets_each_once() -> None:
    feed: Feed[str] = Feed()
    assert feed.last == -1
    got: list[list[tuple[int, str]]] = []

    async def reader() -> None:
        got.append(await collect(feed))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader)
        nursery.start_soon(reader)
        await wait_all_tasks_blocked()
        assert feed.publish("a") == 0
        await wait_all_tasks_blocked()
        assert feed.publish("b") == 1
        assert not feed.closed
        feed.close()
        feed.close()
    assert got == [[(0, "a"), (1, "b")]] * 2
    assert feed.last == 1
    assert feed.closed
    assert await collect(feed) == got[0]


async def test_a_reader_resumes_after_the_last_number_that_it_has() -> None:
    feed: Feed[int] = Feed()
    for number in range(5):
        feed.publish(number * 10)
    feed.close()
    assert await collect(feed, after=2) == [(3, 30), (4, 40)]
    assert await collect(feed, after=4) == []
    assert feed.since(3) == [40]
    assert feed.since(-1) == [0, 10, 20, 30, 40]


async def test_a_reader_whose_next_item_is_gone_is_told_the_first_that_is_kept() -> None:
    feed: Feed[int] = Feed(keep=2)
    reader = feed.read()
    for number in range(3):
        feed.publish(number)
    with pytest.raises(FeedGapError, match="number -1") as caught:
        await anext(reader)
    assert caught.value.first == 1
    assert isinstance(caught.value, LaneError)
    with pytest.raises(FeedGapError):
        feed.read()
    with pytest.raises(FeedGapError):
        feed.since(-1)
    assert feed.since(0) == [1, 2]


async def test_a_number_that_does_not_exist_yet_is_refused_at_the_call() -> None:
    feed: Feed[int] = Feed(math.inf)
    with pytest.raises(ValueError, match="no item has the number 0"):
        feed.read(0)
    with pytest.raises(ValueError, match="no item"):
        feed.since(5)


async def test_nothing_is_published_after_the_end() -> None:
    feed: Feed[int] = Feed()
    feed.close()
    with pytest.raises(RuntimeError, match="closed"):
        feed.publish(1)
    assert feed.last == -1


@pytest.mark.parametrize(
    ("keep", "error"), [(0, ValueError), (1.5, ValueError), (True, TypeError), ("1", TypeError)]
)
def test_a_bad_bound_is_refused(keep: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="keep must be"):
        Feed(keep)


async def test_waiting_is_a_checkpoint_and_cancelling_it_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    feed: Feed[int] = Feed()
    with trio.move_on_after(1) as scope:
        await feed.wait_beyond(-1)
    assert scope.cancelled_caught
    feed.publish(1)
    with assert_checkpoints():
        await feed.wait_beyond(-1)


def test_the_repr_shows_the_state() -> None:
    feed: Feed[int] = Feed()
    feed.publish(1)
    assert "1 items, open" in repr(feed)
    feed.close()
    assert "1 items, closed" in repr(feed)


@pytest.mark.trio_only("it runs Trio")
@hypothesis.given(
    st.random_module(), st.lists(st.integers(0, 4), max_size=20), st.lists(st.integers(1, 6))
)
def test_a_reader_that_comes_back_again_and_again_reads_without_a_gap(
    seed: object, bursts: list[int], reads: list[int]
) -> None:
    async def main() -> None:
        feed: Feed[int] = Feed(math.inf)
        total = sum(bursts)

        async def publish() -> None:
            value = 0
            for burst in bursts:
                for _ in range(burst):
                    feed.publish(value)
                    value += 1
                await trio.lowlevel.checkpoint()
            feed.close()

        got: list[tuple[int, int]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            for count in reads:
                async with aclosing(feed.read(got[-1][0] if got else -1)) as items:
                    async for item in items:
                        got.append(item)
                        count -= 1
                        if not count:
                            break
            got += await collect(feed, got[-1][0] if got else -1)
        assert got == [(number, number) for number in range(total)]

    trio.run(main)
