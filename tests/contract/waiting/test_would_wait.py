"""`would_wait`: what a job would wait for if it came now; and asking changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.model.model_plans import Digits, numbers
from tests.support.chaos import examples
from trio_lanes import (
    Blocker,
    Job,
    JobState,
    LaneConfig,
    LaneGroup,
    LaneInstrument,
    LanesClosedError,
    RateLimit,
    UnknownLaneError,
    current_job,
    open_lanes,
)

SESSIONS = ("a", "b")
LANES = ("main", "cron", "t-1")


class World:
    """Lanes of a random configuration, and random things that are done to them."""

    def __init__(self, number: int, *, asks: bool = True) -> None:
        self.digits = digits = Digits(number)
        self.asks = asks
        self.jobs: list[Job[int]] = []
        self.started: list[tuple[int, float]] = []
        self.fair = digits.pick([False, False, True])
        self.aging = digits.pick([inf, inf, 1.0])
        rates: list[Any] = [(), (), RateLimit(1, per=1), RateLimit(2, per=2, algorithm="sliding")]
        self.costs = digits.pick([(1,), (1, 1, 0, 2)])
        self.limiter = trio.CapacityLimiter(1) if digits.pick([False, False, True]) else None
        self.lanes_config: dict[str, LaneConfig] = {
            "main": self.lane(digits.pick([1, 2]), digits.pick(rates)),
            "cron": (
                self.lane(digits.pick([1, 2]), digits.pick(rates))
                if self.limiter is None
                else LaneConfig(limiter=self.limiter, fair=self.fair)
            ),
            "t-*": self.lane(1, ()),
        }
        self.sessions = LaneConfig(concurrency=digits.pick([1, 2]), rate=digits.pick(rates))
        self.groups = digits.pick([{}, self.group(digits, rates), self.group(digits, rates)])
        self.kinds: list[Callable[[Digits], None]] = [
            self.submit,
            self.submit,
            self.submit,
            *(
                digits.pick([self.cancel, self.pause, self.resume, self.priority, self.resize])
                for _ in range(2)
            ),
        ]

    def lane(self, concurrency: int, rate: Any) -> LaneConfig:
        return LaneConfig(concurrency=concurrency, rate=rate, fair=self.fair, aging=self.aging)

    def group(self, digits: Digits, rates: list[Any]) -> dict[str, LaneGroup]:
        return {
            "g": LaneGroup(
                ["main", "t-*"],
                concurrency=digits.pick([1, 2, inf]),
                reserve={"t-*": digits.pick([0, 1])},
                rate=digits.pick(rates),
            )
        }

    async def live(self, steps: list[int]) -> None:
        async with open_lanes(
            self.lanes_config, sessions=self.sessions, groups=self.groups
        ) as self.lanes:
            for number in steps:
                digits = Digits(number)
                digits.pick(self.kinds)(digits)
                if digits.pick([False, True]):
                    await trio.sleep(digits.pick([0, 0.5, 1]))
                    await wait_all_tasks_blocked()
            self.lanes.clear()
            self.lanes.resume()
            for key in SESSIONS:
                self.lanes.resume(f"session:{key}")
            for job in self.lanes.jobs():
                job.cancel()
            self.lanes.configure({"main": 1})

    def submit(self, digits: Digits) -> None:
        options: dict[str, Any] = {
            "lane": digits.pick(LANES),
            "session": digits.pick([None, *SESSIONS]),
            "priority": digits.pick([0, 0, 1, -1]),
            "cost": digits.pick(self.costs),
        }
        if self.fair:
            options["owner"] = digits.pick(["x", "y"])
        expected = None
        if self.asks:
            before = self.facts()
            expected = self.lanes.would_wait(**options)
            assert self.facts() == before
            bound = {name: value for name, value in options.items() if name != "lane"}
            assert self.lanes.lane(options["lane"]).would_wait(**bound) == expected
            if options["session"] is not None:
                del bound["session"]
                session = self.lanes.session(options["session"])
                assert session.would_wait(lane=options["lane"], **bound) == expected
        number = len(self.jobs)
        how = digits.pick(["sleep", "sleep", "readmit", "lend"])
        job = self.lanes.submit_nowait(self.body, number, how, **options)
        self.jobs.append(job)
        if expected is not None:
            starts = job.state is JobState.RUNNING
            assert starts is (expected == ()), (options, expected, job.blocked_by())

    def facts(self) -> Any:
        lanes = self.lanes
        return (
            lanes.statistics(),
            lanes.sessions(),
            [lanes.session(key).statistics() for key in SESSIONS],
            [(job.id, job.state, job.priority, job.blocked_by()) for job in lanes.jobs()],
        )

    async def body(self, number: int, how: str) -> int:
        self.started.append((number, trio.current_time()))
        job = current_job()
        assert job is not None
        await trio.sleep(0.5)
        if how == "readmit":
            await job.readmit()
        elif how == "lend":
            async with job.yield_slot():
                await trio.sleep(1)
        await trio.sleep(0.5)
        return number

    def cancel(self, digits: Digits) -> None:
        if self.jobs:
            self.jobs[digits.pick(range(30)) % len(self.jobs)].cancel()

    def priority(self, digits: Digits) -> None:
        waiting = [job for job in self.jobs if job.state is JobState.WAITING]
        if waiting:
            waiting[digits.pick(range(30)) % len(waiting)].priority = digits.pick([1, 0, -1])

    def name(self, digits: Digits) -> str:
        return digits.pick([*LANES, *(f"session:{key}" for key in SESSIONS)])

    def pause(self, digits: Digits) -> None:
        self.lanes.pause(self.name(digits))

    def resume(self, digits: Digits) -> None:
        self.lanes.resume(self.name(digits))

    def resize(self, digits: Digits) -> None:
        self.lanes.configure({"main": digits.pick([0, 1, 2])})


settings = st.integers(0, 2**40)
histories = st.lists(numbers, min_size=4, max_size=30)


@hypothesis.settings(max_examples=examples(300))
@hypothesis.given(st.random_module(), settings, histories)
def test_would_wait_is_empty_if_and_only_if_the_job_then_starts_at_once(
    seed: object, number: int, steps: list[int]
) -> None:
    trio.run(World(number).live, steps, clock=MockClock(autojump_threshold=0))


@hypothesis.settings(max_examples=examples(100))
@hypothesis.given(st.random_module(), settings, histories)
def test_jobs_start_in_the_same_order_whether_would_wait_was_asked_or_not(
    seed: object, number: int, steps: list[int]
) -> None:
    worlds = World(number), World(number, asks=False)
    for world in worlds:
        trio._core._run._r.seed(number)
        trio.run(world.live, steps, clock=MockClock(autojump_threshold=0))
    assert worlds[0].started == worlds[1].started


async def test_would_wait_names_the_reasons_to_wait(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "t-*": 1}) as lanes:
        assert lanes.would_wait() == lanes.lane("main").would_wait() == ()
        assert lanes.would_wait(delay=5) == (Blocker("delay", "main", until=5.0),)
        job = lanes.submit_nowait(trio.sleep, 1, session="a")
        assert lanes.would_wait() == (Blocker("concurrency", "main", (job,)),)
        busy = (Blocker("session", "session:a", (job,)),)
        assert lanes.would_wait(session="a") == lanes.session("a").would_wait() == busy
        assert lanes.would_wait(lane="t-1") == ()
        assert "t-1" not in lanes.statistics().lanes


async def test_would_wait_refuses_what_submit_nowait_refuses(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(UnknownLaneError):
            lanes.would_wait(lane="nope")
        with pytest.raises(TypeError, match="priority"):
            lanes.would_wait(priority="high")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout"):
            lanes.would_wait(timeout=-1)
        lanes.close("over")
        with pytest.raises(LanesClosedError):
            lanes.would_wait()


async def test_a_newcomer_that_outranks_the_head_of_a_group_does_not_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    groups = {"g": LaneGroup(["main", "cron"], rate=RateLimit(1, per=60))}
    async with open_lanes({"main": 2, "cron": 2}, groups=groups) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        head = lanes.submit_nowait(trio.sleep, 1)
        assert lanes.would_wait(lane="cron", cost=0) == (Blocker("order", "g", (head,)),)
        assert lanes.would_wait(lane="cron", cost=0, priority=1) == ()
        job = lanes.submit_nowait(trio.sleep, 1, lane="cron", cost=0, priority=1)
        assert job.state is JobState.RUNNING
        lanes.clear()


async def test_a_newcomer_inherits_the_arrival_of_the_job_that_it_outdoes_in_its_session(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(1, per=60)
    async with open_lanes({"main": LaneConfig(concurrency=9, rate=rate)}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        lanes.submit_nowait(trio.sleep, 1, session="a")
        head = lanes.submit_nowait(trio.sleep, 1, priority=1)
        order = (Blocker("order", "main", (head,)),)
        assert lanes.would_wait(cost=0, priority=1) == order
        assert lanes.would_wait(cost=0, priority=1, session="a") == ()
        job = lanes.submit_nowait(trio.sleep, 1, cost=0, priority=1, session="a")
        assert job.state is JobState.RUNNING
        lanes.clear()


async def test_equals_of_a_newcomer_in_its_session_stay_before_it(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(1, per=60)
    sessions = LaneConfig(concurrency=2)
    async with open_lanes(
        {"main": LaneConfig(concurrency=9, rate=rate), "cron": LaneConfig(paused=True)},
        sessions=sessions,
    ) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        lanes.submit_nowait(trio.sleep, 1, session="a")
        equal = lanes.submit_nowait(trio.sleep, 1, session="a", priority=1)
        order = (Blocker("order", "main", (equal,)),)
        assert lanes.would_wait(cost=0, priority=1, session="a") == order
        lanes.submit_nowait(trio.sleep, 1, session="b", lane="cron")
        lanes.submit_nowait(trio.sleep, 1, session="b", lane="cron")
        assert lanes.would_wait(cost=0, priority=1, session="b") == (
            Blocker("order", "main", (equal,)),
        )
        assert lanes.would_wait(cost=0, priority=2, session="b") == ()
        lanes.clear()


async def test_a_head_that_the_job_would_outdo_in_its_session_is_not_before_it_in_their_group(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(1, per=60, algorithm="sliding")
    groups = {"g": LaneGroup(["one", "two"], rate=rate)}
    async with open_lanes({"one": 2, "two": 2}, groups=groups) as lanes:
        lanes.submit_nowait(trio.sleep, 1, lane="one")
        lanes.submit_nowait(trio.sleep, 1, lane="two", session="alice")  # the head of its lane
        for _ in range(2):  # without, and with a job behind that head
            (blocker,) = lanes.would_wait(lane="one", session="alice", priority=1)
            assert (blocker.kind, blocker.until) == ("rate", 60)
            lanes.submit_nowait(trio.sleep, 1, lane="two")
        lanes.clear()


async def test_would_wait_is_answered_in_a_hook_when_a_lane_of_its_group_starts_its_last_job(
    autojump_clock: MockClock,
) -> None:
    answers: list[tuple[Blocker, ...]] = []

    class Asks(LaneInstrument):
        def job_started(self, job: Job[Any]) -> None:
            answers.append(lanes.would_wait(lane="one"))

    groups = {"g": LaneGroup(["one", "two"], concurrency=2)}
    async with open_lanes({"one": 1, "two": 1}, groups=groups, instruments=[Asks()]) as lanes:
        lanes.start_soon(trio.sleep, 1, lane="two")
        lanes.start_soon(trio.sleep, 1, lane="two")
        await lanes.wait_idle()
    assert answers == [(), ()]


async def test_the_text_of_a_blocker_is_a_sentence_about_the_job() -> None:
    async with open_lanes({"main": LaneConfig(paused=True)}) as lanes:
        (paused,) = lanes.would_wait()
        assert str(paused) == "main is paused"
    assert str(Blocker("lent", "main", reason="approval")) == (
        "it has lent its slot, and waits for approval"
    )
    assert str(Blocker("concurrency", "main", reason="its limit is 0")) == (
        "main runs as many as it may: its limit is 0"
    )


async def test_a_rate_that_has_refilled_in_this_moment_holds_no_job(mock_clock: MockClock) -> None:
    rate = RateLimit(1, per=10, algorithm="sliding")
    configs = (
        ({"main": LaneConfig(concurrency=2, rate=rate)}, {}),
        ({"main": 2}, {"g": LaneGroup(["main"], rate=rate)}),
    )
    for lanes_of_it, groups in configs:
        async with open_lanes(lanes_of_it, groups=groups) as lanes:
            await lanes.run(trio.sleep, 0)
            head = lanes.submit_nowait(trio.sleep, 0)
            assert lanes.would_wait(cost=0)
            mock_clock.jump(10)  # its timer has not gone off yet
            assert lanes.would_wait(cost=0) == ()
            assert lanes.submit_nowait(trio.sleep, 0, cost=0).state is JobState.RUNNING
            await head.wait()
