"""Limits that tune themselves: an `Adaptive` concurrency."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import returns
from trio_lanes import (
    Adaptive,
    Job,
    JobCancelledError,
    JobState,
    Lane,
    LaneConfig,
    LaneDeadlockError,
    LaneInstrument,
    Lanes,
    SessionLane,
    current_job,
    open_lanes,
)
from trio_lanes.durable import MemoryStore, open_durable_lanes


class RefusedError(Exception):
    """A refusal."""


def refused(error: BaseException) -> bool:
    return isinstance(error, RefusedError)


def aimd(low: int = 2, high: int = 64) -> LaneConfig:
    return LaneConfig(concurrency=Adaptive(low, high, by="aimd", overloaded=refused))


def gradient(low: int = 10, high: int = 100) -> LaneConfig:
    return LaneConfig(concurrency=Adaptive(low, high, overloaded=refused))


async def refuse() -> None:
    await trio.sleep(1)
    raise RefusedError


async def spread(lanes: Lanes, rounds: int, fn: Callable[..., Any], *args: Any) -> None:
    """Keep the lane full for some rounds of jobs, with each limit that it has."""
    for _ in range(rounds):
        jobs = [lanes.submit_nowait(fn, *args) for _ in range(int(lanes.lane("main").concurrency))]
        for job in jobs:
            await job.wait_done()
            _ = job.exception


def tried(lanes: Lanes) -> list[int]:
    return [one.limit for one in lanes.lane("main").limits_tried]


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"low": 0}, ValueError, ("low", "0")),
        ({"low": True}, TypeError, ("low", "True")),
        ({"low": 2.5}, ValueError, ("low", "2.5")),
        ({"low": 5, "high": 4}, ValueError, ("high", "low", "5", "4")),
        ({"high": math.inf}, ValueError, ("high", "inf")),
        ({"by": "vegas"}, ValueError, ("by", "'vegas'")),
        ({"overloaded": None}, TypeError, ("overloaded", "None")),
        ({"overloaded": refuse}, TypeError, ("overloaded", "refuse")),
    ],
)
def test_a_bad_value_is_refused_with_its_field(
    values: Any, error: type[Exception], words: Iterable[str]
) -> None:
    with pytest.raises(error) as caught:
        Adaptive(**values)
    assert all(word in str(caught.value) for word in words)


async def test_it_is_for_global_lanes_of_the_core_with_limiters_of_their_own() -> None:
    adaptive = Adaptive(2, 8)
    with pytest.raises(ValueError, match=r"sessions cannot have concurrency=Adaptive\(low=2"):
        open_lanes(sessions=LaneConfig(concurrency=adaptive))
    with pytest.raises(ValueError, match="'session:vip' cannot have concurrency=Adaptive"):
        open_lanes({"session:vip": LaneConfig(concurrency=adaptive)})
    with pytest.raises(ValueError, match="concurrency must be left out where there is a limiter"):
        LaneConfig(concurrency=adaptive, limiter=trio.CapacityLimiter(1))
    config = LaneConfig(concurrency=adaptive)
    with pytest.raises(ValueError, match=r"lane 'main': the concurrency .* got Adaptive\(low=2"):
        open_durable_lanes(MemoryStore(), {}, {"main": config})
    async with open_durable_lanes(MemoryStore(), {}) as durable:
        with pytest.raises(ValueError, match="lane 'main': the concurrency"):
            await durable.configure({"main": config})


async def test_it_doubles_until_a_job_is_refused_then_grows_by_one_and_falls_by_a_tenth(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": aimd()}) as lanes:
        lane = lanes.lane("main")
        assert (lane.concurrency, lane.config.concurrency, lane.limits_tried) == (2, 2, ())
        for limit in (4, 8, 16):
            await spread(lanes, 1, trio.sleep, 1)
            assert lane.concurrency == limit
        await spread(lanes, 1, refuse)  # once for all of them
        assert lane.concurrency == 8
        await spread(lanes, 2, trio.sleep, 1)
        assert tried(lanes)[-3:] == [8, 9, 10]
        await spread(lanes, 1, refuse)
        assert lane.concurrency == 9
        assert lane.limits_tried[-1].reason == "a job was refused"
        assert lane.limits_tried[-2].reason == "nothing was refused"
        assert lane.limits_tried[-1].at == trio.current_time()
        assert lane.statistics().concurrency == lane.limiter.total_tokens == 9


async def test_it_stays_between_low_and_high(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": aimd(3, 5)}) as lanes:
        await spread(lanes, 4, trio.sleep, 1)
        assert lanes.lane("main").concurrency == 5
        for _ in range(5):
            await spread(lanes, 1, refuse)
        assert lanes.lane("main").concurrency == 3
        await spread(lanes, 40, trio.sleep, 1)
        for _ in range(20):
            await spread(lanes, 2, refuse)
            await spread(lanes, 8, trio.sleep, 1)
        assert len(tried(lanes)) == 30
        assert {3, 4, 5} == set(tried(lanes))


async def test_a_lane_that_does_not_use_its_limit_learns_nothing_from_success(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": aimd(10)}) as lanes:
        for _ in range(50):
            await lanes.run(trio.sleep, 1)
        assert tried(lanes) == []


async def test_failures_that_are_no_refusal_and_cancelled_jobs_say_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("no refusal")

    def broken(error: BaseException) -> bool:
        raise KeyError("the predicate")

    async with open_lanes({"main": aimd()}) as lanes:
        await spread(lanes, 3, fail)
        jobs = [lanes.submit_nowait(trio.sleep, 9) for _ in range(2)]
        await trio.sleep(1)
        for job in jobs:
            job.cancel()
            with pytest.raises(JobCancelledError):
                await job.wait()
        with pytest.raises(trio.TooSlowError):
            await lanes.run(trio.sleep, 9, timeout=1)
        assert tried(lanes) == []
        assert "Adaptive" not in caplog.text
        config = LaneConfig(concurrency=Adaptive(2, 8, overloaded=broken))
        lanes.configure({"main": config})
        with pytest.raises(ValueError, match="no refusal"):
            await lanes.run(fail)
        assert tried(lanes) == []
        assert "Adaptive.overloaded raised" in caplog.text


@pytest.mark.parametrize(
    ("attributes", "falls"),
    [
        ({"response": SimpleNamespace(status_code=429)}, True),
        ({"status_code": 529}, True),
        ({"response": SimpleNamespace(status_code=400, headers={"Retry-After": "7"})}, True),
        ({"response": SimpleNamespace(status_code=500, headers={"Date": "x"})}, False),
        ({"response": SimpleNamespace(headers=["retry-after"])}, False),
        ({}, False),
    ],
)
async def test_by_default_a_refusal_is_an_error_with_such_a_response(
    attributes: dict[str, Any], falls: bool, autojump_clock: MockClock
) -> None:
    async def fail() -> None:
        error = OSError("of a client")
        vars(error).update(attributes)
        await trio.sleep(1)
        raise error

    async with open_lanes({"main": LaneConfig(concurrency=Adaptive(1, 8, by="aimd"))}) as lanes:
        await spread(lanes, 2, trio.sleep, 1)
        assert lanes.lane("main").concurrency == 4
        with pytest.raises(OSError, match="of a client"):
            await lanes.run(fail)
        assert lanes.lane("main").concurrency == (2 if falls else 4)


async def test_a_job_says_that_it_was_refused_and_tries_again(autojump_clock: MockClock) -> None:
    async def call() -> None:
        job = current_job()
        assert job is not None
        await trio.sleep(1)
        job.overloaded()
        limits.append(lanes.lane("main").concurrency)
        lanes.pause_for("main", 5)
        await job.readmit()
        await trio.sleep(1)
        job.overloaded()
        limits.append(lanes.lane("main").concurrency)

    limits: list[float] = []
    async with open_lanes({"main": aimd(), "other": 4}) as lanes:
        await spread(lanes, 3, trio.sleep, 1)
        jobs = [lanes.submit_nowait(call) for _ in range(4)]
        for job in jobs:
            await job.wait()
            job.overloaded()  # it has ended
        assert limits == [8] * 4 + [7] * 4
        await lanes.run(call, lane="other")  # which has no `Adaptive`


async def test_by_the_gradient_it_falls_when_jobs_take_longer_and_nothing_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": gradient()}) as lanes:
        lane = lanes.lane("main")
        await spread(lanes, 2, trio.sleep, 1)
        assert tried(lanes) == [20, 40]
        await spread(lanes, 1, trio.sleep, 3)
        assert lane.concurrency == 37
        assert lane.limits_tried[-1].reason == "jobs take longer: 3 s, 1.67 s in the long run"
        await spread(lanes, 1, trio.sleep, 3)
        least = lane.concurrency
        assert least == 36
        await spread(lanes, 10, trio.sleep, 0.2)  # much faster: the long run is soon forgotten
        assert lane.concurrency > least
        assert lane.limits_tried[-1].reason == "jobs take as long as ever"
        await spread(lanes, 1, refuse)
        assert lane.limits_tried[-1].reason == "a job was refused"


async def lends(seconds: float) -> None:
    job = current_job()
    assert job is not None
    async with job.yield_slot():
        await trio.sleep(seconds)
    await trio.sleep(seconds)


async def test_by_the_gradient_the_times_of_jobs_that_lend_their_slots_say_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": gradient()}) as lanes:
        await spread(lanes, 1, lends, 1)
        assert tried(lanes) == [20]  # it doubles, as nothing was refused
        await spread(lanes, 1, trio.sleep, 1)
        await spread(lanes, 1, trio.sleep, 1)
        assert tried(lanes) == [20, 40, 80]
        await spread(lanes, 1, lends, 50)
        assert tried(lanes) == [20, 40, 80, 100]
        await spread(lanes, 1, refuse)
        await spread(lanes, 1, lends, 50)
        assert lanes.lane("main").limits_tried[-1].reason == "nothing was refused"
        assert tried(lanes)[-2:] == [50, 51]


async def test_by_the_gradient_a_few_times_are_kept_until_their_mean_says_something(
    autojump_clock: MockClock,
) -> None:
    async def some(number: int, seconds: float) -> None:
        if number % 3:
            await lends(1)
        else:
            await trio.sleep(seconds)

    async def rounds(count: int, seconds: float) -> None:
        for _ in range(count):
            jobs = [lanes.submit_nowait(some, n, seconds) for n in range(int(lane.concurrency))]
            for job in jobs:
                await job.wait()

    async with open_lanes({"main": gradient(10, 20)}) as lanes:
        lane = lanes.lane("main")
        await rounds(12, 1)
        assert lane.concurrency == 20
        await rounds(12, 5)  # seven times in a round: each second one has a mean
        assert "jobs take longer: 5 s," in [tried.reason[:22] for tried in lane.limits_tried]
        assert lane.concurrency < 20


async def test_after_a_round_at_its_highest_limit_the_first_refusal_lowers_it_by_a_tenth(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": aimd(2, 16)}) as lanes:
        await spread(lanes, 3, trio.sleep, 1)
        assert tried(lanes) == [4, 8, 16]
        await spread(lanes, 1, trio.sleep, 1)
        await spread(lanes, 1, refuse)
        assert tried(lanes) == [4, 8, 16, 14]


class NoExceptionError(BaseException):
    """As `pytest.fail` raises it."""


@pytest.mark.parametrize("session", [None, "alice"])
@pytest.mark.parametrize("runs", [False, True], ids=["by its handle", "in the block's own task"])
async def test_a_job_settles_whatever_the_predicate_raises(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, session: str | None, runs: bool
) -> None:
    def broken(error: BaseException) -> bool:
        raise NoExceptionError

    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("no refusal")

    settled: list[Job[Any]] = []
    config = LaneConfig(concurrency=Adaptive(1, 8, overloaded=broken))
    async with open_lanes({"main": config}) as lanes:
        if runs:
            with pytest.raises(ValueError, match="no refusal"):
                await lanes.run(
                    fail, session=session, on_submit=lambda job: job.on_settled(settled.append)
                )
        else:
            job = lanes.submit_nowait(fail, session=session)
            job.on_settled(settled.append)
            with pytest.raises(ValueError, match="no refusal"):
                await job.wait()
        await lanes.run(trio.sleep, 1, session=session)  # nothing stands still
    assert [job.state for job in settled] == [JobState.FAILED]
    assert "Adaptive.overloaded raised" in caplog.text


# ---- a limit that falls under jobs that wait


@pytest.mark.parametrize("way", ["main", "other"])
async def test_waits_for_jobs_of_the_lane_end_in_errors_when_the_fall_leaves_no_slot_for_them(
    autojump_clock: MockClock, way: str
) -> None:
    async def child() -> str:
        return await lanes.run(grandchild) if way == "other" else await grandchild()

    async def grandchild() -> str:
        await trio.sleep(1)
        return "value"

    async def parent() -> str:
        await trio.sleep(0.5)
        return await lanes.run(child, lane=way)

    async with open_lanes({"main": aimd(2, 4), "other": 9}) as lanes:
        lane = lanes.lane("main")
        await spread(lanes, 3, trio.sleep, 1)
        parents = [lanes.submit_nowait(parent) for _ in range(3)]
        refused = lanes.submit_nowait(refuse)
        await refused.wait_done()
        _ = refused.exception
        assert lane.concurrency == 3
        ends = []
        for job in parents:
            await job.wait_done()
            ends.append(type(job.exception))
        assert ends.count(LaneDeadlockError) in (1, 2)  # then there is a slot for the others
        assert set(ends) <= {LaneDeadlockError, type(None)}
        await lanes.wait_idle()
    assert trio.current_time() < 20


async def test_a_fall_leaves_waits_alone_that_a_limit_of_the_application_holds(
    autojump_clock: MockClock,
) -> None:
    async def parent() -> str:
        return await lanes.run(returns, lane="other")

    async with open_lanes({"main": aimd(2, 4), "other": 2}) as lanes:
        await spread(lanes, 1, trio.sleep, 1)
        job = lanes.submit_nowait(parent, lane="other")
        lanes.submit_nowait(trio.sleep, 1, lane="other")
        await wait_all_tasks_blocked()
        lanes.lane("other").concurrency = 1
        await trio.sleep(2)
        for _ in range(2):
            await spread(lanes, 1, refuse)
        assert lanes.lane("main").concurrency == 2
        assert job.state is JobState.RUNNING
        lanes.lane("other").concurrency = 2
        await job.wait()


class Configured(LaneInstrument):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def lane_configured(self, lane: Lane | SessionLane) -> None:
        self.seen.append(lane.concurrency)


async def test_a_number_replaces_it_and_the_same_again_keeps_what_was_learned(
    autojump_clock: MockClock,
) -> None:
    hooks = Configured()
    async with open_lanes({"main": aimd()}, instruments=[hooks]) as lanes:
        lane = lanes.lane("main")
        await spread(lanes, 2, trio.sleep, 1)
        assert hooks.seen == [4, 8]
        lanes.configure({"main": aimd()})
        lanes.configure({"other": 1})
        assert lane.concurrency == 8
        lane.concurrency = 6
        await spread(lanes, 2, trio.sleep, 1)
        assert (lane.concurrency, lane.limits_tried) == (6, ())
        lanes.configure({"main": aimd(2, 50)})
        assert lane.concurrency == 6
        await spread(lanes, 1, trio.sleep, 1)
        assert lane.concurrency == 12
        lanes.configure({"main": math.inf})
        lanes.configure({"main": aimd()})
        assert lane.concurrency == 64
        lanes.configure({"main": LaneConfig(limiter=trio.CapacityLimiter(3))})
        lanes.configure({"main": aimd()})
        assert lane.concurrency == lane.limiter.total_tokens == 64


@pytest.mark.parametrize("by", ["configure", "attribute"])
async def test_a_number_that_is_what_it_has_learned_replaces_it_too(
    by: str, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": aimd(4)}) as lanes:
        lane = lanes.lane("main")
        if by == "configure":
            lanes.configure({"main": 4})
        else:
            lane.concurrency = 4
        await spread(lanes, 2, trio.sleep, 1)
        assert (lane.concurrency, lane.limits_tried) == (4, ())


async def test_each_lane_of_a_template_learns_for_itself_and_forgets(
    autojump_clock: MockClock,
) -> None:
    async def hold(name: str, seconds: float) -> None:
        await lanes.run(trio.sleep, seconds, lane=name)

    async with open_lanes({"tenant:*": aimd()}) as lanes, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(hold, "tenant:a", 1)
        await trio.sleep(0.5)
        nursery.start_soon(hold, "tenant:a", 1)  # which waits for a slot
        await trio.sleep(1)
        assert lanes.lane("tenant:a").concurrency == 4
        assert lanes.lane("tenant:b").concurrency == 2
        await trio.sleep(2)
        assert lanes.lane("tenant:a").concurrency == 2


async def test_a_predicate_that_configures_the_lane_in_spite_of_the_rule_does_no_harm(
    autojump_clock: MockClock,
) -> None:
    def meddles(error: BaseException) -> bool:
        lanes.lane("main").concurrency = 3
        return True

    config = LaneConfig(concurrency=Adaptive(2, 8, by="aimd", overloaded=meddles))
    async with open_lanes({"main": config}) as lanes:
        await spread(lanes, 3, trio.sleep, 1)  # so that a refusal lowers it
        for _ in range(2):
            await lanes.submit_nowait(refuse).wait_done()
        assert lanes.lane("main").concurrency == 3
        await spread(lanes, 1, trio.sleep, 1)
