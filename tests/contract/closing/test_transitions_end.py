"""What a user's own code raises in the middle of a change does not leave the lanes dead."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import open_lanes


class Hostile:
    """An owner that cannot be compared."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError


async def no_op() -> str:
    return "done"


async def test_a_clear_whose_owner_cannot_be_compared_leaves_the_lanes_alive(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause()
        job = lanes.submit_nowait(no_op, owner="somebody")
        with pytest.raises(ZeroDivisionError):
            lanes.clear(owner=Hostile())
        lanes.resume()
        with trio.fail_after(1):
            assert await job.wait() == "done"
