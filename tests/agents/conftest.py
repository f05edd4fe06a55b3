"""What the tests of inboxes share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from trio.testing import MockClock

from tests.agents.inbox_stage import Stage
from trio_lanes import Lanes, open_lanes


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
async def lanes(autojump_clock: MockClock) -> AsyncIterator[Lanes]:
    async with open_lanes() as lanes:
        yield lanes
        await lanes.drain(grace=0)
