"""What the child of a fork does first; coverage is not measured in a real one."""

import pytest

from tests.support.bodies import returns_at_once
from trio_lanes import open_lanes
from trio_lanes._flow import loop


async def test_the_lanes_of_the_parent_are_refused() -> None:
    async with open_lanes() as lanes:
        portal, scheduler = lanes.portal(), lanes._scheduler
        thread = scheduler.thread
        loop._disown()
        for call in (lanes.submit_nowait, portal.submit, portal.run):
            with pytest.raises(RuntimeError, match="the parent of this forked process"):
                call(returns_at_once)
        scheduler.thread = thread
