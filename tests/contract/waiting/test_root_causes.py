"""Why a job waits in the end: the line from it to the root, what would help there, and for how
long it will hold."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import this_job
from trio_lanes import Cause, Job, LaneConfig, LaneGroup, Lanes, RateLimit, open_lanes

SLIDING = RateLimit(1, per=60, algorithm="sliding")


def runs(lanes: Lanes, **options: Any) -> Job[Any]:
    """A job that runs for very long."""
    return lanes.submit_nowait(trio.sleep, 1000, **options)


async def shielded(seconds: float) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(seconds)


def lines(job: Job[Any]) -> list[str]:
    return [str(cause) for cause in job.root_causes()]


def advice(job: Job[Any]) -> list[str | None]:
    return [cause.advice for cause in job.root_causes()]


def end_all(lanes: Lanes) -> None:
    lanes.clear()
    lanes.reset()


async def test_a_job_that_does_not_wait_has_no_cause(autojump_clock: MockClock) -> None:
    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep(5)

    async with open_lanes({"main": 2}) as lanes:
        job, lender = lanes.submit_nowait(trio.sleep, 1), lanes.submit_nowait(lends)
        await wait_all_tasks_blocked()
        assert job.root_causes() == lender.root_causes() == ()
        await job.wait()
        assert job.root_causes() == ()


def test_a_cause_is_a_value_and_its_text_is_one_line() -> None:
    cause = Cause(
        1594,
        "rate",
        "provider",
        'rate of "provider": 100 a minute, 21 before it',
        ((1519, "of its session"),),
        seconds=13.2,
    )
    assert str(cause) == (
        '1594 ← 1519 of its session ← rate of "provider": 100 a minute, 21 before it, in about 13 s'
    )
    assert hash(cause) == hash(attrs.evolve(cause))
    with pytest.raises(AttributeError):
        cause.kind = "pause"  # type: ignore[misc]


# ---- rates


async def test_behind_a_job_of_its_session_that_a_rate_holds_the_rate_is_the_cause(
    autojump_clock: MockClock,
) -> None:
    provider = LaneConfig(concurrency=99, rate=RateLimit(100))
    async with open_lanes({"main": 24, "provider": provider}) as lanes:
        for number in range(30):
            lanes.submit_nowait(trio.sleep, 0.5, lane="provider", session=str(number))
        held = lanes.submit_nowait(trio.sleep, 0.5, lane="provider", session="alice")
        job = lanes.submit_nowait(trio.sleep, 0.5, session="alice")
        last = lanes.submit_nowait(trio.sleep, 0.5, session="alice")
        await trio.sleep(1)
        for one in (job, last):
            (cause,) = one.root_causes()
            assert str(cause) == (
                f'{one.id} ← 31 of its session ← rate of "provider": 100 a minute, 19 before it, '
                "in about 13 s"
            )
            assert (cause.kind, cause.lane) == ("rate", "provider")
            assert cause.chain == ((31, "of its session"),)
            assert cause.advice == 'raise the rate of "provider"'
            assert cause.seconds is not None
        expected = trio.current_time() + cause.seconds
        await held.wait_started()
        assert trio.current_time() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
async def test_each_place_behind_a_rate_is_told_the_time_at_which_it_then_starts(
    autojump_clock: MockClock, algorithm: Any
) -> None:
    rates = [
        RateLimit(7, per=10, algorithm=algorithm),
        RateLimit(50, per=30, unit="tokens", algorithm=algorithm, burst=None),
    ]
    async with open_lanes({"main": LaneConfig(concurrency=99, rate=rates)}) as lanes:
        jobs = [
            lanes.submit_nowait(trio.sleep, 0, cost={"tokens": (3, 0, 8, 5)[number % 4]})
            for number in range(40)
        ]
        await trio.sleep(2.5)
        foreseen = {job: job.root_causes()[0].seconds for job in jobs if not job.done}
        assert len(foreseen) > 25
        for job, seconds in foreseen.items():
            await job.wait()
            assert seconds is not None
            assert job.started_at is not None
            assert job.started_at == pytest.approx(2.5 + seconds, abs=1e-6)


async def test_the_limit_that_holds_it_longest_is_named_with_its_unit(
    autojump_clock: MockClock,
) -> None:
    rates = [RateLimit(1, per=1), RateLimit(5, per=10, unit="tokens", algorithm="sliding")]
    async with open_lanes({"main": LaneConfig(concurrency=9, rate=rates)}) as lanes:
        await lanes.run(trio.sleep, 0, cost={"tokens": 5})
        job = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 1})
        assert lines(job) == ['2 ← rate of "main": 5 tokens in 10 s, in about 10 s']
        free = lanes.submit_nowait(trio.sleep, 0)
        assert lines(free) == ['3 ← rate of "main": 1 a second, 1 before it, in about 11 s']
        lanes.clear()


async def test_the_rate_of_a_session_is_told_at_the_job_that_waits_for_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes(sessions=LaneConfig(rate=SLIDING)) as lanes:
        alice = lanes.session("alice")
        await alice.run(trio.sleep, 0)
        await trio.sleep(10)
        first, second = (alice.submit_nowait(trio.sleep, 0) for _ in range(2))
        assert lines(first) == ['2 ← rate of "session:alice": 1 a minute, in about 50 s']
        assert lines(second) == [
            '3 ← 2 of its session ← rate of "session:alice": 1 a minute, in about 50 s'
        ]
        lanes.clear()


async def test_the_rate_of_a_group_is_told_with_the_job_of_another_lane_that_stands_first(
    autojump_clock: MockClock,
) -> None:
    tokens = RateLimit(100, unit="tokens", algorithm="sliding")
    group = LaneGroup(["main", "cron"], rate=tokens)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        await lanes.run(trio.sleep, 0, cost={"tokens": 70})
        large, cheap = runs(lanes, cost={"tokens": 50}), runs(lanes)
        assert lines(cheap) == [
            '3 ← rate of the group "g": 100 tokens a minute, 1 before it, in about 60 s'
        ]
        other = runs(lanes, cost={"tokens": 10}, lane="cron")
        root = 'rate of the group "g": 100 tokens a minute'
        assert lines(large) == [f"2 ← {root}, in about 60 s"]
        assert lines(cheap) == [f"3 ← {root}, 1 before it"]  # jobs of "cron" may come between
        assert lines(other) == [f'4 ← 2 before it in the group "g" ← {root}, in about 60 s']
        assert advice(other) == ['raise the rate of "g"']
        end_all(lanes)


async def test_of_a_long_line_no_more_than_500_places_are_read(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=9, rate=SLIDING)}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 0) for _ in range(600)]
        assert lines(jobs[-1]) == ['600 ← rate of "main": 1 a minute, 500 or more before it']
        assert lines(jobs[500]) == [
            '501 ← rate of "main": 1 a minute, 499 before it, in about 30,000 s'
        ]
        lanes.clear()


# ---- pauses and delays


async def test_a_pause_that_ends_is_told_with_its_end(autojump_clock: MockClock) -> None:
    async with open_lanes() as lanes:
        lanes.pause_for("main", 30)
        await trio.sleep(4)
        job = lanes.submit_nowait(trio.sleep, 0, session="alice")
        behind = lanes.submit_nowait(trio.sleep, 0, session="alice")
        assert lines(behind) == ['2 ← 1 of its session ← pause of "main", in about 26 s']
        assert advice(behind) == ['resume "main"']
        (cause,) = job.root_causes()
        await job.wait()
        assert job.started_at == 4 + (cause.seconds or 0) == 30
        lanes.pause("main")
        lanes.session("alice").pause_for(9.5)
        await behind.wait_done()
        by_hand = lanes.submit_nowait(trio.sleep, 0, session="alice")
        assert lines(by_hand) == ['3 ← pause of "session:alice", in about 9.5 s']
        await trio.sleep(10)
        assert lines(by_hand) == ['3 ← pause of "main"']
        lanes.clear()
        lanes.resume()


async def test_a_timed_pause_of_a_lane_that_is_paused_besides_has_no_end(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(paused=True)}) as lanes:
        lanes.pause_for("main", 30)
        job = runs(lanes)
        assert lines(job) == ['1 ← pause of "main"']
        assert job.blocked_by()[0].until is None
        assert lanes.statistics().lanes["main"].paused_until is None
        await trio.sleep(40)
        assert lines(job) == ['1 ← pause of "main"']
        lanes.clear()


async def test_a_delay_is_told_with_its_end(autojump_clock: MockClock) -> None:
    async def waits(target: Job[Any]) -> None:
        await target.wait()

    async with open_lanes() as lanes:
        delayed = lanes.submit_nowait(trio.sleep, 0, delay=60)
        job = lanes.submit_nowait(waits, delayed)
        await trio.sleep(15)
        assert lines(delayed) == ["1 ← delay of 60 s, in about 45 s"]
        assert lines(job) == ["2 ← 1 that it waits for ← delay of 60 s, in about 45 s"]
        (cause,) = job.root_causes()
        assert cause.advice is None
        await delayed.wait_started()
        assert trio.current_time() == 15 + (cause.seconds or 0)


async def test_a_job_with_a_delay_of_decades_is_held(autojump_clock: MockClock) -> None:
    async with open_lanes() as lanes:
        held = lanes.submit_nowait(trio.sleep, 0, delay=1e9)
        await trio.sleep(100)
        (cause,) = held.root_causes()
        assert str(cause) == "1 ← it is held"
        assert cause.advice == "release what holds it: an inbox, if it is its next turn"
        assert lanes.health() == ()


# ---- slots


async def test_slots_are_named_with_the_job_that_has_had_one_longest(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        runs(lanes)
        await trio.sleep(80)
        runs(lanes)
        await trio.sleep(6)
        first, second = runs(lanes, session="alice"), runs(lanes)
        behind = runs(lanes, session="alice")
        root = 'slots of "main": 2 of 2 in use, longest by 1 for 86 s'
        assert lines(first) == [f"3 ← {root}"]
        assert lines(second) == [f"4 ← {root}, 1 before it"]
        assert lines(behind) == [f"5 ← 3 of its session ← {root}"]
        (cause,) = behind.root_causes()
        assert (cause.kind, cause.lane, cause.jobs) == ("concurrency", "main", (1, 2))
        assert cause.advice == 'raise the concurrency of "main"'
        end_all(lanes)


async def test_behind_holders_that_hang_the_advice_is_to_end_one_and_not_to_add_a_slot(
    autojump_clock: MockClock,
) -> None:
    async def tells() -> None:
        await trio.sleep(100)
        this_job().progress()
        await trio.sleep(1000)

    group = {"all": LaneGroup(["shared"], concurrency=1)}
    async with open_lanes({"main": 2, "shared": 9}, groups=group) as lanes:
        runs(lanes)
        await trio.sleep(10)
        lanes.submit_nowait(tells, session="alice")
        waits, behind = runs(lanes), runs(lanes, session="alice")
        runs(lanes, lane="shared")
        of_group = runs(lanes, lane="shared")
        await trio.sleep(399)  # 399 s after the second began, 299 s after it told of progress
        assert advice(waits) == ['raise the concurrency of "main"']
        assert advice(behind) == [None]
        assert advice(of_group) == ['cancel 5, or reset "shared"']
        await trio.sleep(1)
        assert advice(waits) == ['cancel 1, or reset "main"']
        assert advice(behind) == ['cancel 2, or reset "session:alice"']
        (cause,) = waits.root_causes()
        assert (cause.kind, cause.jobs) == ("concurrency", (1, 2))
        end_all(lanes)


async def test_a_lane_and_a_session_of_none_are_causes(autojump_clock: MockClock) -> None:
    none = LaneConfig(concurrency=0)
    async with open_lanes({"main": 0, "cron": 9, "session:shut": none}) as lanes:
        assert lines(runs(lanes)) == ['1 ← slots of "main": it has none']
        shut = runs(lanes, lane="cron", session="shut")
        assert lines(shut) == ['2 ← slots of "session:shut": it has none']
        assert advice(shut) == ['raise the concurrency of "session:shut"']
        end_all(lanes)


async def test_a_group_of_none_is_a_cause(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 9}, groups={"all": LaneGroup(["main"], concurrency=0)}) as lanes:
        job = runs(lanes)
        assert lines(job) == ['1 ← slots of the group "all": it has none']
        assert advice(job) == ['raise the concurrency of the group "all"']
        end_all(lanes)


async def test_slots_that_other_code_holds_are_named_so(autojump_clock: MockClock) -> None:
    limiter = trio.CapacityLimiter(1)
    config = {name: LaneConfig(limiter=limiter) for name in ("main", "cron")}
    async with open_lanes(config) as lanes:
        async with limiter:
            job = lanes.submit_nowait(trio.sleep, 5, lane="cron")
            await wait_all_tasks_blocked()
            assert lines(job) == ['1 ← slots of "cron": 1 of 1 in use by other code']
        await trio.sleep(3)
        other = lanes.submit_nowait(trio.sleep, 0)
        assert lines(other) == ['2 ← slots of "main": 1 of 1 in use, longest by 1 for 3.0 s']


async def test_a_body_in_its_session_is_the_cause(autojump_clock: MockClock) -> None:
    async with open_lanes(sessions=LaneConfig(concurrency=2)) as lanes:
        for _ in range(2):
            runs(lanes, session="alice")
            await trio.sleep(3)
        job = runs(lanes, session="alice")
        assert lines(job) == ["3 ← 1 of its session ← its body, for 6.0 s"]
        (cause,) = job.root_causes()
        assert (cause.kind, cause.advice) == ("body", None)
        end_all(lanes)


async def test_tokens_and_reservations_of_a_group_are_causes(autojump_clock: MockClock) -> None:
    group = LaneGroup(["main", "hooks"], concurrency=3, reserve={"hooks": 1})
    async with open_lanes({"main": 9, "hooks": 9}, groups={"g": group}) as lanes:
        for _ in range(2):
            runs(lanes)
        job = runs(lanes)
        root = 'slots of the group "g": those left are reserved for other lanes'
        assert lines(job) == [f"3 ← {root}"]
        assert advice(job) == ['lower the reservations of the group "g"']
        runs(lanes, lane="hooks")
        await trio.sleep(2)
        root = 'slots of the group "g": 3 of 3 in use, longest by 1 for 2.0 s'
        assert lines(job) == [f"3 ← {root}"]
        assert advice(job) == ['raise the concurrency of the group "g"']
        end_all(lanes)


# ---- jobs that wait for jobs


async def test_where_all_holders_of_slots_wait_their_cause_is_the_root(
    autojump_clock: MockClock,
) -> None:
    async def asks() -> None:
        await lanes.run(trio.sleep, 5, lane="provider", session="p")

    provider = LaneConfig(rate=SLIDING, concurrency=9)
    async with open_lanes({"main": 2, "provider": provider}) as lanes:
        await lanes.run(trio.sleep, 0, lane="provider")
        holders = [lanes.submit_nowait(asks) for _ in range(2)]
        await trio.sleep(10)
        job = runs(lanes)
        rate = 'rate of "provider": 1 a minute, in about 50 s'
        assert lines(job) == [f'6 ← 2 with a slot of "main" ← 4 that it waits for ← {rate}']
        assert advice(job) == [
            'have 2 lend its slot while it waits (yield_slot); or raise the rate of "provider"'
        ]
        assert lines(holders[1]) == [f"3 ← 5 that it waits for ← 4 of its session ← {rate}"]
        end_all(lanes)
        end_all(lanes)


async def test_a_job_that_waits_for_any_of_several_follows_one_that_can_go_on(
    autojump_clock: MockClock,
) -> None:
    async def takes() -> None:
        async with lanes.map(trio.sleep, [5, 900], lane="cron", ordered=False) as results:
            async for _ in results:
                pass

    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.start_soon(takes)
        await trio.sleep(1)
        job = runs(lanes)
        assert lines(job) == [
            '4 ← 1 with a slot of "main" ← 2 that it waits for ← its body, for 1.0 s'
        ]
        lanes.clear("main")


async def test_all_that_holds_a_job_is_told_and_no_line_twice(autojump_clock: MockClock) -> None:
    async def waits() -> None:
        async with trio.open_nursery() as nursery:
            for target in targets:
                nursery.start_soon(target.wait_done)

    async with open_lanes({"main": 9, "cron": 1}) as lanes:
        lanes.pause("cron")
        targets = [lanes.submit_nowait(trio.sleep, 0, lane="cron", delay=90), runs(lanes)]
        job = lanes.submit_nowait(waits)
        await trio.sleep(30)
        assert sorted(lines(job)) == [
            "3 ← 1 that it waits for ← delay of 90 s, in about 60 s",
            "3 ← 2 that it waits for ← its body, for 30 s",
        ]
        end_all(lanes)
        lanes.resume()


async def test_room_leads_to_a_job_that_takes_it(autojump_clock: MockClock) -> None:
    async def submits(session: str | None) -> None:
        await lanes.submit(trio.sleep, 0, lane="cron", session=session)

    bound = LaneConfig(max_waiting=1)
    async with open_lanes({"main": 9, "cron": bound}, sessions=bound) as lanes:
        runs(lanes, lane="cron", session="alice")
        waiting = runs(lanes, lane="cron", session="alice")
        root = '"session:alice", which has no room ← 1 of its session ← its body, for 0.0 s'
        job = lanes.submit_nowait(submits, "alice")
        await wait_all_tasks_blocked()
        assert lines(job) == [f"3 ← 2 in {root}"]
        other = lanes.submit_nowait(submits, None)
        await wait_all_tasks_blocked()
        way = '2 in "cron", which has no room ← 1 of its session'
        assert lines(other) == [f"4 ← {way} ← its body, for 0.0 s"]
        waiting.cancel()
        end_all(lanes)
        end_all(lanes)


async def test_a_lane_in_which_none_may_wait_is_a_cause(autojump_clock: MockClock) -> None:
    async def submits() -> None:
        await lanes.submit(trio.sleep, 0, lane="cron")

    async with open_lanes({"main": 9, "cron": LaneConfig(max_waiting=0)}) as lanes:
        runs(lanes, lane="cron")
        job = lanes.submit_nowait(submits)
        await wait_all_tasks_blocked()
        assert lines(job) == ['2 ← room in "cron"']
        assert advice(job) == ['raise max_waiting of "cron"']
        end_all(lanes)


async def test_room_in_a_line_leads_to_its_head(autojump_clock: MockClock) -> None:
    async def submits() -> None:
        await lanes.submit(trio.sleep, 0, lane="cron")

    async with open_lanes({"main": 9, "cron": LaneConfig(max_waiting=1)}) as lanes:
        lanes.pause_for("cron", 50)
        runs(lanes, lane="cron")
        job = lanes.submit_nowait(submits)
        await wait_all_tasks_blocked()
        way = '2 ← 1 in "cron", which has no room'
        assert lines(job) == [f'{way} ← pause of "cron", in about 50 s']
        lanes.resume()
        end_all(lanes)


async def test_a_body_that_outlives_its_cancellation_is_the_cause_with_what_frees_its_slot(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        stuck = lanes.submit_nowait(shielded, 60, session="alice")
        await trio.sleep(20)
        stuck.cancel()
        await trio.sleep(20)
        mate, other = runs(lanes, session="alice"), runs(lanes)
        root = "its body, for 40 s, 20 s after it was asked to stop"
        assert lines(mate) == [f"2 ← 1 of its session ← {root}"]
        assert lines(other) == ['3 ← slots of "main": 1 of 1 in use, longest by 1 for 40 s']
        reset = 'reset "session:alice": the body of 1 goes on after it was asked to stop'
        assert advice(mate) == advice(other) == [reset]
        lanes.clear()
        quick = lanes.submit_nowait(trio.sleep, 0)
        assert advice(quick) == [reset]
        lanes.reset()
        assert lanes.lane("main").overdue(9) == []
        plain = lanes.submit_nowait(shielded, 15, timeout=1)
        await trio.sleep(12)
        reset = f'reset "main": the body of {plain.id} goes on after it was asked to stop'
        assert advice(runs(lanes)) == [reset]
        lanes.clear()


async def test_a_job_that_is_about_to_go_on_has_no_cause(autojump_clock: MockClock) -> None:
    async def waits() -> None:
        await target.wait_done()

    found: list[Any] = []
    async with open_lanes() as lanes:
        target = lanes.submit_nowait(trio.sleep, 5)
        job = lanes.submit_nowait(waits)
        target.on_settled(lambda _: found.append(job.root_causes()))
    assert found == [()]


# ---- lent slots


async def test_a_lent_slot_is_told_with_what_is_waited_for(autojump_clock: MockClock) -> None:
    async def lends(reason: str | None) -> None:
        async with this_job().yield_slot(reason=reason):
            await trio.sleep(50)

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(lends, "approval", session="alice")
        lanes.submit_nowait(lends, None, session="bob")
        await trio.sleep(2)
        root = '"approval", for which it has lent its slot'
        assert lines(job) == [f"1 ← {root}"]
        behind = [runs(lanes, session=key) for key in ("alice", "bob")]
        assert lines(behind[0]) == [f"3 ← 1 of its session ← {root}"]
        assert advice(behind[0]) == ["end the wait for approval"]
        assert lines(behind[1]) == ["4 ← 2 of its session ← its body, for 2.0 s"]
        lanes.clear()


async def test_jobs_that_want_their_slots_back_are_before_all_that_wait(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep(5)

    async with open_lanes({"main": 1}) as lanes:
        lenders = [lanes.submit_nowait(lends) for _ in range(2)]
        await wait_all_tasks_blocked()
        runs(lanes)
        await trio.sleep(8)
        job = runs(lanes)
        root = 'slots of "main": 1 of 1 in use, longest by 3 for 8.0 s'
        assert lines(lenders[0]) == [f"1 ← {root}"]
        assert lines(lenders[1]) == [f"2 ← {root}, 1 before it"]
        assert lines(job) == [f"4 ← {root}, 2 before it"]
        lanes.clear()
        lanes.reset()


async def test_a_slot_that_comes_back_waits_for_no_reservation(autojump_clock: MockClock) -> None:
    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep(5)

    group = LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lender = lanes.submit_nowait(lends)
        await wait_all_tasks_blocked()
        runs(lanes)
        await trio.sleep(6)
        lanes.configure(groups={"g": group})
        assert lines(lender) == ['1 ← slots of "main": 1 of 1 in use, longest by 2 for 6.0 s']
        lanes.reset()


async def test_a_job_that_is_readmitted_waits_as_before_its_start(
    autojump_clock: MockClock,
) -> None:
    async def again() -> None:
        await trio.sleep(1)
        await this_job().readmit()

    sessions = LaneConfig(concurrency=3, rate=RateLimit(2, per=30, algorithm="sliding"))
    async with open_lanes({"main": 9, "cron": 9}, sessions=sessions) as lanes:
        alice = lanes.session("alice")
        first, second = (alice.submit_nowait(again) for _ in range(2))
        other = lanes.submit_nowait(again, lane="cron")
        await wait_all_tasks_blocked()
        lanes.pause_for("cron", 9)
        later = alice.submit_nowait(trio.sleep, 0)
        await trio.sleep(2)
        rate = 'rate of "session:alice": 2 in 30 s, in about 28 s'
        assert lines(other) == ['3 ← pause of "cron", in about 7.0 s']
        assert lines(first) == [f"1 ← {rate}"]
        assert lines(second) == [f"2 ← 1 of its session ← {rate}"]
        assert lines(later) == [f"4 ← 1 of its session ← {rate}"]
        alice.pause_for(3)
        assert lines(first) == ['1 ← pause of "session:alice", in about 3.0 s', f"1 ← {rate}"]
        await first.wait_done()
        assert trio.current_time() == 30


# ---- deadlocks, and the bounds


async def test_a_limit_that_was_lowered_under_jobs_that_wait_for_each_other_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    async def parent() -> None:
        await trio.sleep(1)
        await lanes.run(trio.sleep, 1)

    async with open_lanes({"main": 3}) as lanes:
        job, _ = lanes.submit_nowait(parent), lanes.submit_nowait(parent)
        blocker = runs(lanes)
        await trio.sleep(1.5)
        lanes.lane("main").concurrency = 2
        blocker.cancel()
        await wait_all_tasks_blocked()
        (cause,) = job.root_causes()
        ((child, relation),) = cause.chain
        assert (cause.kind, relation, cause.jobs) == ("deadlock", "that it waits for", (1, child))
        assert str(cause) == f"1 ← {child} that it waits for ← deadlock of 1, {child}"
        assert cause.advice is not None
        assert "yield_slot" in cause.advice
        lanes.lane("main").concurrency = 3


async def test_a_chain_that_is_too_long_is_cut_and_says_so(autojump_clock: MockClock) -> None:
    async def waits(target: Job[Any]) -> None:
        await target.wait_done()

    async with open_lanes({"main": 99}) as lanes:
        jobs = [runs(lanes)]
        for _ in range(40):
            jobs.append(lanes.submit_nowait(waits, jobs[-1]))
        await wait_all_tasks_blocked()
        (cause,) = jobs[20].root_causes()
        assert cause.kind == "body"
        assert len(cause.chain) == 20
        (cause,) = jobs[40].root_causes()
        assert cause.kind == "unknown"
        assert str(cause).endswith(" ← ...")
        assert cause.advice is None
        jobs[0].cancel()


async def test_the_time_of_a_pause_has_that_of_the_rates_after_it(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(1, per=10, algorithm="sliding")
    config = {"main": LaneConfig(rate=rate), "other": 1, "grouped": 1}
    config["session:s"] = LaneConfig(rate=rate)
    group = LaneGroup(["grouped"], rate=rate)
    async with open_lanes(config, groups={"g": group}) as lanes:
        await trio.sleep(1)
        jobs = []
        for pause, options in (
            ("main", {}),
            ("grouped", {"lane": "grouped"}),
            ("session:s", {"lane": "other", "session": "s"}),
        ):
            lanes.pause_for(pause, 4)
            jobs += [lanes.submit_nowait(trio.sleep, 0, **options) for _ in range(2)]
        seconds = [[cause.seconds for cause in job.root_causes()] for job in jobs]
        assert seconds[0] == seconds[2] == seconds[4] == [4]
        assert seconds[1] == seconds[3] == [14]
        now = trio.current_time()
        for job, (first, *_) in zip(jobs, seconds, strict=True):
            await job.wait()
            assert job.started_at is not None
            assert job.started_at - now == first


async def test_the_time_of_a_pause_is_unknown_where_jobs_of_others_come_between(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(1, per=10, algorithm="sliding")
    group = LaneGroup(["a", "b"], rate=rate)
    async with open_lanes({"a": 1, "b": 1}, groups={"g": group}) as lanes:
        for lane in ("a", "b"):
            lanes.pause_for(lane, 4)
            jobs = [lanes.submit_nowait(trio.sleep, 0, lane=lane) for _ in range(2)]
        assert [cause.seconds for cause in jobs[1].root_causes()] == [None]


async def test_reservations_that_leave_a_lane_nothing_are_the_cause_and_lowering_them_helps(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["own", "other"], concurrency=1, reserve={"own": 1})
    async with open_lanes({"own": 1, "other": 1}, groups={"g": group}) as lanes:
        lanes.submit_nowait(trio.sleep, 5, lane="own")
        job = lanes.submit_nowait(trio.sleep, 0, lane="other")
        assert lines(job) == ['2 ← slots of the group "g": all are reserved for other lanes']
        assert advice(job) == ['lower the reservations of the group "g"']
        await trio.sleep(6)
        assert advice(job) == ['lower the reservations of the group "g"']
        lanes.configure(groups={"g": LaneGroup(["own", "other"], concurrency=1)})
        await job.wait()
