"""A feed: a numbered log of items that any number of readers follow, each at its own pace.

There is one log, and no queue for each reader. A reader is a number: the number of the last item
that it has. It asks for the items after that number, and waits if there are none. So a reader that
connects, a reader that reconnects and a reader that is slow are the same, no reader slows the
publisher, and memory has one bound, which the feed sets: the number of items that are kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from trio_lanes import LaneError

from ..._config.check import positive_count

T = TypeVar("T")


class FeedGapError(LaneError):
    """Items after the number of the reader are not kept any more.

    Attributes:
      first: the number of the first item that is kept.
    """

    def __init__(self, after: int, first: int) -> None:
        super().__init__(
            f"the items after number {after} are not all kept any more: the first is {first}"
        )
        self.first: Final = first


class Feed(Generic[T]):
    """A log of items with the numbers 0, 1, 2 ..., for readers that may leave and come back.

    ::

        feed = Feed[str]()
        feed.publish("a")  # number 0
        feed.close()
        async for number, item in feed.read():  # after a break: feed.read(after=number)
            print(number, item)

    Args:
      keep: the number of items that are kept for readers; `math.inf` for all.

    Raises:
      TypeError, ValueError: if ``keep`` is not a whole number from 1 up, nor `math.inf`.
    """

    def __init__(self, keep: int | float = 2_000) -> None:
        positive_count("keep", keep)
        self._items: Final[deque[T]] = deque(maxlen=None if keep == math.inf else int(keep))
        self._last = -1
        self._closed = False
        self._readers: Final = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<trio_lanes.agents.Feed at {id(self):#x}, {self._last + 1} items, {state}>"

    @property
    def last(self) -> int:
        """The number of the last item; -1 before the first."""
        return self._last

    @property
    def closed(self) -> bool:
        """Whether `close` was called: no item follows."""
        return self._closed

    @enable_ki_protection
    def publish(self, item: T) -> int:
        """Append ``item`` to the log, wake the readers, and return its number. Not a checkpoint.

        Raises:
          RuntimeError: if the feed is closed.
        """
        if self._closed:
            raise RuntimeError(f"{self!r} is closed; nothing can be published")
        self._last += 1
        self._items.append(item)
        self._readers.unpark_all()
        return self._last

    @enable_ki_protection
    def close(self) -> None:
        """End the log: each reader ends when it has read the last item. Not a checkpoint.

        The items stay. A second call has no effect.
        """
        self._closed = True
        self._readers.unpark_all()

    def since(self, after: int) -> list[T]:
        """Return the items after the number ``after``; -1 means from the beginning.

        Not a checkpoint.

        Raises:
          FeedGapError: if some of these items are not kept any more.
          ValueError: if no item has that number yet.
        """
        count = self._count_after(after)
        return list(islice(self._items, len(self._items) - count, None))

    async def wait_beyond(self, after: int) -> None:
        """Wait until there is an item after the number ``after``, or the feed is closed.

        A checkpoint. Cancelling the wait leaves nothing behind.
        """
        await trio.lowlevel.checkpoint()
        while self._last <= after and not self._closed:
            await self._readers.park()

    def read(self, after: int = -1) -> AsyncGenerator[tuple[int, T], Any]:
        """Iterate over ``(number, item)`` after the number ``after``, until the feed is closed.

        Each step is a checkpoint. After a cancelled step, read on after the last number: no item is
        lost.

        Raises:
          FeedGapError: at a step, if the next item is not kept any more: the reader is too slow, or
            was away for too long. At the call, if that is so already.
          ValueError: at the call, if no item has that number yet.
        """
        self._count_after(after)
        return self._read(after)

    async def _read(self, after: int) -> AsyncGenerator[tuple[int, T], Any]:
        while True:
            await self.wait_beyond(after)
            count = self._count_after(after)
            if not count:
                return
            after += 1
            yield after, self._items[len(self._items) - count]

    def _count_after(self, after: int) -> int:
        count = self._last - after
        if count < 0:
            raise ValueError(f"no item has the number {after} yet; the last is {self._last}")
        if count > len(self._items):
            raise FeedGapError(after, self._last + 1 - len(self._items))
        return count
