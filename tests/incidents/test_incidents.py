"""Twenty incidents, each of which one request explains: `root_causes` of a job, or `health`.

The table says where each is played: in the core here, and over each store by a story of the
conformance suite, which the tests of all four stores run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.durable.conformance.suite import STORIES
from tests.support.bodies import this_job
from trio_lanes import Job, LaneConfig, LaneGroup, Lanes, RateLimit, open_lanes

RATE = RateLimit(1, per=60, algorithm="sliding")

INCIDENTS: dict[str, tuple[str | None, str | None]] = {
    "a rate holds another job of the session": (
        "rate_of_another_job",
        "test_the_cause_is_a_rate_that_holds_another_job_of_the_session",
    ),
    "a start cost more than its rate": (
        "debt",
        "test_the_cause_is_the_debt_of_a_quota_whose_settlement_was_above_its_estimate",
    ),
    "a group has no slot": (
        "group",
        "test_a_job_is_blocked_by_the_group_of_its_lane_or_its_reservations",
    ),
    "slots are reserved": (
        "reservation",
        "test_a_job_is_blocked_by_the_group_of_its_lane_or_its_reservations",
    ),
    "a forgotten pause": ("pause", "test_it_is_a_problem_that_nothing_serves_a_lane"),
    "a session is paused": ("pause_of_session", "test_a_job_is_blocked_by_a_pause"),
    "a body past its timeout": (
        "stuck_body",
        "test_the_cause_is_a_body_that_outlives_its_timeout_or_its_cancellation",
    ),
    "a body that outlives its cancellation": (
        "cancelled_body",
        "test_the_cause_is_a_body_that_outlives_its_timeout_or_its_cancellation",
    ),
    "a long body of the session": ("long_body", "test_a_job_is_blocked_by_the_head_of_its_session"),
    "a lent slot": (
        "lent_slot",
        "test_the_cause_is_the_holder_of_a_lock_which_waits_for_another_job",
    ),
    "a deadlock": ("deadlock", "test_the_cause_is_a_deadlock_of_locks"),
    "a full lane": ("full_lane", "test_a_job_is_blocked_by_a_lane_without_a_free_slot"),
    "a limit of 0": ("limit_of_0", "test_it_is_a_problem_that_nothing_serves_a_lane"),
    "no room": ("no_room", "test_it_is_a_problem_that_no_instance_has_room_for_a_job"),
    "a delay, or a retry": ("delay", "test_a_job_is_blocked_by_its_delay_and_between_its_attempts"),
    "a dead head": (None, "test_a_job_is_blocked_by_a_dead_job_that_keeps_its_session_closed"),
    "no handler": (None, "test_it_is_a_problem_that_no_instance_has_a_handler"),
    "no live instance": (
        None,
        "test_a_job_is_blocked_until_an_instance_lives_that_has_its_handler",
    ),
    "an instance is gone": (None, "test_the_cause_is_a_run_on_an_instance_that_is_gone"),
    "a lock": (None, "test_a_run_is_blocked_by_the_lock_that_it_waits_for"),
    "a quota": (None, "test_a_run_is_blocked_by_the_quota_that_it_waits_for"),
    "a poison job": (None, "test_a_suspect_is_blocked_until_an_instance_runs_few_jobs"),
    "a slow store": (None, "test_it_is_a_problem_that_a_store_answers_slowly"),
}


def runs(lanes: Lanes, **options: Any) -> Job[Any]:
    """A job that runs for very long."""
    return lanes.submit_nowait(trio.sleep, 1000, **options)


async def shielded() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(1000)


@attrs.frozen
class Incident:
    """Jobs, the cause of the wait of the last of them, and what `health` finds after 30 s."""

    submit: Callable[[Lanes], Job[Any]]
    kind: str
    lane: str
    advice: str | None
    problems: tuple[str, ...] = ()
    lanes: Mapping[str, Any] = {"main": 9, "cron": 9}
    groups: Mapping[str, LaneGroup] = {}


def rate_of_another_job(lanes: Lanes) -> Job[Any]:
    for session in ("r", "s"):
        lanes.submit_nowait(trio.sleep, 0, lane="cron", session=session)
    return runs(lanes, session="s")


def debt(lanes: Lanes) -> Job[Any]:
    lanes.submit_nowait(trio.sleep, 0, cost=40)
    return runs(lanes)


def one_of_each_lane(lanes: Lanes) -> Job[Any]:
    runs(lanes, lane="cron")
    return runs(lanes)


def two(lanes: Lanes) -> Job[Any]:
    runs(lanes)
    return runs(lanes)


def pause(lanes: Lanes) -> Job[Any]:
    lanes.pause("main")
    return runs(lanes)


def pause_of_session(lanes: Lanes) -> Job[Any]:
    lanes.pause_for("session:s", 300)
    return runs(lanes, session="s")


def stuck_body(lanes: Lanes) -> Job[Any]:
    lanes.submit_nowait(shielded, session="s", timeout=5)
    return runs(lanes, session="s")


def cancelled_body(lanes: Lanes) -> Job[Any]:
    async def cancels() -> None:
        stuck.cancel()

    stuck = lanes.submit_nowait(shielded, session="s")
    lanes.submit_nowait(cancels)
    return runs(lanes, session="s")


def long_body(lanes: Lanes) -> Job[Any]:
    runs(lanes, session="s")
    return runs(lanes, session="s")


def lent_slot(lanes: Lanes) -> Job[Any]:
    async def lends() -> None:
        async with this_job().yield_slot(reason="approval"):
            await trio.sleep(1000)

    lanes.submit_nowait(lends, session="s")
    return runs(lanes, session="s")


def deadlock(lanes: Lanes) -> Job[Any]:
    async def waits() -> None:
        await trio.sleep(1)
        await lanes.run(trio.sleep, 1)

    async def lowers() -> None:
        await trio.sleep(2)
        lanes.lane("main").concurrency = 2
        blocker.cancel()

    jobs = [lanes.submit_nowait(waits) for _ in range(2)]
    blocker = runs(lanes)
    lanes.submit_nowait(lowers, lane="cron")
    return jobs[0]


def limit_of_0(lanes: Lanes) -> Job[Any]:
    lanes.configure({"main": 0})
    return runs(lanes)


def no_room(lanes: Lanes) -> Job[Any]:
    async def fills() -> None:
        for _ in range(2):
            await lanes.submit(trio.sleep, 0, lane="cron")

    runs(lanes, lane="cron")
    return lanes.submit_nowait(fills)


def delay(lanes: Lanes) -> Job[Any]:
    return runs(lanes, delay=600)


STUCK = 'reset "session:s": the body of 1 goes on after it was asked to stop'
RATED = {"main": 9, "cron": LaneConfig(concurrency=9, rate=RATE)}
BUCKET = {"main": LaneConfig(concurrency=9, rate=RateLimit(10, per=60, burst=1))}
FULL = {"main": 9, "cron": LaneConfig(concurrency=1, max_waiting=1)}
SHARED = {"g": LaneGroup(["main", "cron"], 1)}
RESERVED = {"g": LaneGroup(["main", "cron"], 2, reserve={"cron": 1})}

CORE = {
    "rate_of_another_job": Incident(
        rate_of_another_job, "rate", "cron", 'raise the rate of "cron"', lanes=RATED
    ),
    "debt": Incident(debt, "rate", "main", 'raise the rate of "main"', ("rate",), lanes=BUCKET),
    "group": Incident(
        one_of_each_lane, "group", "g", 'raise the concurrency of the group "g"', groups=SHARED
    ),
    "reservation": Incident(
        two, "reservation", "g", 'lower the reservations of the group "g"', groups=RESERVED
    ),
    "pause": Incident(pause, "pause", "main", 'resume "main"', ("pause",)),
    "pause_of_session": Incident(pause_of_session, "pause", "session:s", 'resume "session:s"'),
    "stuck_body": Incident(stuck_body, "body", "main", STUCK, ("overdue",)),
    "cancelled_body": Incident(cancelled_body, "body", "main", STUCK, ("overdue",)),
    "deadlock": Incident(
        deadlock,
        "deadlock",
        "main",
        "lend the slots meanwhile (yield_slot), give the inner jobs another lane or no session, "
        "or raise the limit",
        ("deadlock",),
        lanes={"main": 3, "cron": 1},
    ),
    "long_body": Incident(long_body, "body", "main", None),
    "lent_slot": Incident(lent_slot, "lent", "main", "end the wait for approval"),
    "full_lane": Incident(
        two, "concurrency", "main", 'raise the concurrency of "main"', lanes={"main": 1}
    ),
    "limit_of_0": Incident(
        limit_of_0, "concurrency", "main", 'raise the concurrency of "main"', ("concurrency",)
    ),
    "no_room": Incident(
        no_room, "concurrency", "cron", 'raise the concurrency of "cron"', lanes=FULL
    ),
    "delay": Incident(delay, "delay", "main", None),
}


async def test_the_verdict_is_about_the_hundred_lanes_that_have_waited_longest(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"t:*": 1, "late": 1}) as lanes:
        lanes.pause("t:*")
        lanes.pause("late")
        runs(lanes, lane="late")
        await trio.sleep(15)
        for n in range(102):
            runs(lanes, lane=f"t:{n}")
        assert [(one.lane, one.job) for one in lanes.health()] == [("late", 1)]
        await trio.sleep(15)
        found = lanes.health()
        assert (len(found), found.unseen, found[0].lane) == (100, 3, "late")
        assert found[0].text.endswith('1 ← pause of "late", until it is resumed')
        lanes.clear()


def test_each_incident_is_played_where_the_table_says() -> None:
    assert len(INCIDENTS) >= 20
    assert {here for here, _ in INCIDENTS.values() if here is not None} == CORE.keys()
    for _, story in INCIDENTS.values():
        assert story is None or story in STORIES


@pytest.mark.parametrize("name", CORE)
async def test_one_request_finds_the_cause_of_an_incident_in_the_core(
    name: str, autojump_clock: MockClock
) -> None:
    incident = CORE[name]
    async with open_lanes(incident.lanes, groups=incident.groups) as lanes:
        job = incident.submit(lanes)
        await wait_all_tasks_blocked()
        await trio.sleep(30)
        (cause,) = job.root_causes()
        assert (cause.kind, cause.lane, cause.advice) == (
            incident.kind,
            incident.lane,
            incident.advice,
        ), str(cause)
        assert tuple(problem.kind for problem in lanes.health()) == incident.problems
        lanes.clear()
        lanes.reset()
