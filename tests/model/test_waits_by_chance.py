"""Random histories in which each quarter of a second of each wait is looked at: what `Job.waits`
says in the end is what `blocked_by` said first at each look, and no second is missing.

All acts are at multiples of a quarter of a second, and so is what follows from them, or it comes
the least moment later: aging puts a job first after the moment in which it is equal. So what is
seen in the middle of a quarter holds for all of it.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import this_job
from tests.support.chaos import examples
from trio_lanes import Coalesce, Job, LaneConfig, LaneGroup, Lanes, RateLimit, open_lanes

STEP = 0.25  # seconds
CAUSES = {"concurrency": "slots", "reservation": "group"}

LANES = ("main", "main", "sub:a", "sub:b", "shared", "shared too")
SESSIONS = (None, None, "alice", "bob", "carol")
NAMES = (*LANES, "session:alice", "session:bob")
RATES = (
    (),
    (),
    RateLimit(1, per=1, algorithm="sliding"),
    RateLimit(3, per=2, algorithm="sliding"),
)


def drawn_setting(draw: random.Random) -> dict[str, Any]:
    limiter = trio.CapacityLimiter(draw.randint(1, 2))
    lanes: dict[str, Any] = {
        name: LaneConfig(
            concurrency=draw.choice([1, 2, 3]),
            rate=draw.choice(RATES),
            aging=draw.choice([math.inf, math.inf, 0.5]),
            fair=draw.random() < 0.3,
            paused=draw.random() < 0.1,
        )
        for name in ("main", "sub:*")
    }
    lanes |= {
        name: LaneConfig(limiter=limiter, rate=draw.choice(RATES))
        for name in ("shared", "shared too")
    }
    group = LaneGroup(
        ["main", "sub:*"],
        concurrency=draw.randint(1, 4),
        reserve=draw.choice([{}, {"main": 1}]),
        rate=draw.choice([(), RateLimit(2, per=1, algorithm="sliding")]),
    )
    return {
        "lanes": lanes,
        "groups": {"g": group} if draw.random() < 0.6 else {},
        "sessions": LaneConfig(concurrency=draw.choice([1, 1, 2]), rate=draw.choice(RATES)),
    }


def drawn_job(draw: random.Random) -> dict[str, Any]:
    lane, session = draw.choice(LANES), draw.choice(SESSIONS)
    coalesce = Coalesce(
        (lane, session),
        debounce=draw.choice([0, STEP, 4 * STEP]),
        max_wait=draw.choice([math.inf, 6 * STEP]),
    )
    joins = draw.random() < 0.2
    return {
        "lane": lane,
        "session": session,
        "coalesce": coalesce if joins else None,
        "priority": draw.choice([0, 0, 0, -1, 1]),
        "delay": 0 if joins else draw.choice([0, 0, 0, 0, STEP, 3 * STEP]),
        "cost": draw.choice([1, 1, 0, 2]),
        "queue_timeout": draw.choice([math.inf] * 5 + [3 * STEP, 8 * STEP]),
    }


async def body(what: str, seconds: float) -> None:
    job = this_job()
    if what == "lend":
        async with job.yield_slot():
            await trio.sleep(seconds)
    elif what == "readmit":
        await job.readmit()
    await trio.sleep(seconds)


class History:
    def __init__(self, lanes: Lanes, setting: dict[str, Any]) -> None:
        self.lanes = lanes
        self.setting = setting
        self.jobs: list[Job[None]] = []
        self.expected: defaultdict[Job[None], Counter[str]] = defaultdict(Counter)

    def act(self, draw: random.Random) -> None:
        lanes = self.lanes
        match draw.choices(range(8), [12, 1, 1, 1, 1, 1, 0.5, 0.3])[0]:
            case 0:
                what = draw.choice(["sleep", "sleep", "sleep", "lend", "readmit"])
                job = lanes.submit_nowait(
                    body, what, draw.choice([1, 1, 2, 4]) * STEP, **drawn_job(draw)
                )
                if job not in self.jobs:
                    self.jobs.append(job)
            case 1:
                draw.choice(self.jobs).cancel()
            case 2:
                draw.choice(self.jobs).priority = draw.randint(-1, 1)
            case 3:
                lanes.pause_for(draw.choice(NAMES), draw.randint(1, 4) * STEP)
            case 4:
                lanes.resume(draw.choice(NAMES))
            case 5:
                lanes.configure({"main": draw.randint(1, 3)})
            case 6:
                lanes.configure(groups=self.setting["groups"] if draw.random() < 0.7 else {})
            case _:
                lanes.clear(draw.choice(NAMES))

    async def look(self) -> None:
        """Let a quarter of a second pass, and note in its middle what holds each job."""
        await trio.sleep(STEP / 2)
        now = trio.current_time()
        for job in self.jobs:
            cause = None
            if job.started_at is None and not job.done:
                assert sum(job.waits.values()) == pytest.approx(now - job.submitted_at)
                (first, *_) = job.blocked_by()
                cause = CAUSES.get(first.kind, first.kind)
                self.expected[job][cause] += STEP / 2  # type: ignore[assignment]
            waits = {cause: seconds for cause, seconds in job.waits.items() if seconds > 1e-9}
            assert waits == pytest.approx(dict(self.expected[job])), job.blocked_by()
            if cause is not None:
                self.expected[job][cause] += STEP / 2  # type: ignore[assignment]
        await trio.sleep(STEP / 2)


@hypothesis.settings(max_examples=examples(60), deadline=None)
@hypothesis.given(seed=st.integers(0, 2**32), module=st.random_module())
def test_each_moment_of_a_wait_has_the_first_cause_and_none_is_missing(
    seed: int, module: object
) -> None:
    draw = random.Random(seed)

    async def live() -> None:
        setting = drawn_setting(draw)
        async with open_lanes(**setting, wait_accounting=True) as lanes:
            history = History(lanes, setting)
            for _ in range(30):
                for _ in range(draw.randint(0, 4)):
                    with suppress(RuntimeError, IndexError):  # a job has settled; there is none
                        history.act(draw)
                await history.look()
            lanes.configure(groups={})  # which may keep all tokens for "main"
            for name in [None, *NAMES]:
                lanes.resume(name)
            with trio.fail_after(600):
                while lanes.jobs():
                    await history.look()
            await history.look()
        for job in history.jobs:
            end = job.finished_at if job.started_at is None else job.started_at
            assert end is not None
            assert sum(job.waits.values()) == pytest.approx(end - job.submitted_at)

    trio.run(live, clock=MockClock(autojump_threshold=0))
