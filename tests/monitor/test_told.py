"""What page and ``top`` tell below the verdict: why something waits, though it is no problem."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.monitor.web import ask, looking, operator, page
from trio_lanes import LaneConfig, Lanes, RateLimit, open_lanes
from trio_lanes.durable import DurableLanes, MemoryStore, RetryPolicy, open_durable_lanes
from trio_lanes.monitor import _durable, _frames, monitor


async def wait(payload: Any = None) -> None:
    await trio.sleep_forever()


async def fail(payload: Any) -> None:
    raise ConnectionError("the provider is down")


async def told(lanes: Lanes, durable: DurableLanes | None = None) -> list[tuple[str, Any]]:
    """Return what a page that is opened now tells, each with what would help."""
    async with looking(page(lanes, durable=durable)) as viewer:
        return [(one["text"], one["advice"]) for one in (await viewer.next())["told"]]


async def test_the_longest_wait_is_told_with_its_cause_when_it_is_long(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(1, per=3600, algorithm="sliding")
    async with open_lanes({"main": LaneConfig(concurrency=9, rate=rate), "cron": 1}) as lanes:
        assert await told(lanes) == []
        for _ in range(2):
            lanes.submit_nowait(trio.sleep, 0)
        await trio.sleep(9)
        assert await told(lanes) == []
        lanes.submit_nowait(wait, lane="cron")
        lanes.submit_nowait(wait, lane="cron")
        await trio.sleep(20)
        cause = '2 ← rate of "main": 1 an hour, in about 3,571 s'
        text = f"the oldest wait is of 29 s, in 'main': {cause}"
        assert await told(lanes) == [(text, 'raise the rate of "main"')]
        lanes.clear()
        lanes.reset()


async def test_a_wait_that_a_problem_tells_of_is_not_told_again(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause("main")
        lanes.submit_nowait(wait)
        await trio.sleep(20)
        assert [one.kind for one in lanes.health()] == ["pause"]
        assert await told(lanes) == []
        lanes.clear()


async def test_of_core_and_store_the_longer_wait_is_told(autojump_clock: MockClock) -> None:
    handlers, limits = {"wait": wait}, {"main": 1}
    async with (
        open_durable_lanes(MemoryStore(), handlers, limits, grace=0) as durable,
        open_lanes({"mail": 1}) as lanes,
    ):
        jobs = [await durable.submit("wait") for _ in range(2)]
        await trio.sleep(20)
        for _ in range(2):
            lanes.submit_nowait(wait, lane="mail")
        await trio.sleep(20)
        ((text, advice),) = await told(lanes, durable)
        assert text.startswith(f"the oldest wait is of 40 s, in 'main': {jobs[1].id} ← slots of ")
        assert advice == f'raise the concurrency of "main", or cancel {jobs[0].id}'
        await durable.cancel(jobs[1].id)
        ((text, _),) = await told(lanes, durable)
        assert text.startswith("the oldest wait is of 20 s, in 'mail'")
        lanes.clear()
        lanes.reset()


async def test_a_wait_of_a_lane_behind_many_jobs_of_others_is_found(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_durable, "READ_OF_A_STATE", 1)
    handlers, limits = {"wait": wait}, {"main": 1, "cron": 1}
    async with open_durable_lanes(MemoryStore(), handlers, limits, grace=0) as durable:
        for lane in ("main", "main", "cron", "cron"):
            await durable.submit("wait", lane=lane)
        await trio.sleep(20)
        assert durable.local is not None
        async with looking(page(durable.local, durable=durable)) as viewer:
            rows = {row["name"]: row["oldest"] for row in (await viewer.next())["lanes"]}
        assert rows == {"main": 20, "cron": 20}


@pytest.mark.parametrize("fair", [False, True])
async def test_the_owner_of_most_of_what_waits_in_that_lane_is_told(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, fair: bool
) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=1, fair=fair)}) as lanes:
        for n in range(19):
            lanes.submit_nowait(trio.sleep, 1000, owner="acme")
            lanes.submit_nowait(trio.sleep, 1000, owner=f"other {n}")
        await trio.sleep(20)
        assert len(await told(lanes)) == 1
        lanes.submit_nowait(trio.sleep, 1000, owner="acme")
        lanes.submit_nowait(trio.sleep, 1000, owner="acme")
        found = await told(lanes)
        assert len(found) == 2
        text = "of the 39 that wait in 'main', 20 are of the owner 'acme'"
        helps = None if fair else "make 'main' fair, so that owners take turns"
        assert found[1] == (text, helps)
        for n in range(10):
            lanes.submit_nowait(trio.sleep, 1000, owner=f"another {n}")
        assert len(await told(lanes)) == 1
        monkeypatch.setattr(_frames, "OWNERS_READ", 39)
        assert (await told(lanes))[1][0].startswith("of the first 39 of the 49 that wait in 'main'")
        lanes.clear()
        lanes.reset()


async def test_a_job_of_a_store_without_an_owner_is_its_sessions(autojump_clock: MockClock) -> None:
    limits = {"main": LaneConfig(concurrency=1, fair=True)}
    async with open_durable_lanes(MemoryStore(), {"wait": wait}, limits, grace=0) as durable:
        for n in range(24):
            owner = None if n % 8 else f"other {n}"
            await durable.submit("wait", session="ann" if n else None, owner=owner)
        await trio.sleep(20)
        assert durable.local is not None
        _, (text, helps) = await told(durable.local, durable)
        assert text == "of the 23 that wait in 'main', 21 are of the owner 'ann'"
        assert helps is None


async def test_jobs_that_back_off_are_told_with_their_error_when_they_are_many(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = RetryPolicy(max_attempts=9, backoff=(1000.0, 1000.0))
    handlers = {"fail": fail}
    async with open_durable_lanes(MemoryStore(), handlers, {"main": 9}, retry=retry) as durable:
        await durable.submit("fail", delay=5000)
        jobs = [await durable.submit("fail") for _ in range(19)]
        await trio.sleep(20)
        assert durable.local is not None
        assert await told(durable.local, durable) == []
        await durable.submit("fail")
        await trio.sleep(20)
        text = (
            "of the 21 that are parked, 20 back off after a failure, 20 of them by ConnectionError"
        )
        helps = f"look at one, job {jobs[0].id}, and promote them when what fails is mended"
        assert await told(durable.local, durable) == [(text, helps)]
        await durable.submit("fail")
        monkeypatch.setattr(_durable, "READ_OF_A_STATE", 21)
        ((text, _),) = await told(durable.local, durable)
        assert text.startswith("of the first 21 of the 22 that are parked, 20 back off")
        await durable.clear("main")


async def test_the_last_error_that_was_noticed_is_told_for_five_minutes(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=0)}) as lanes:
        app = page(lanes)

        async def text() -> list[str]:
            async with looking(app) as viewer:
                return [one["text"] for one in (await viewer.next())["told"]]

        lanes.submit_nowait(wait)
        assert await text() == []
        for _ in range(2):
            with pytest.raises(Exception, match="full"):
                lanes.submit_nowait(wait)
        lanes.pause("main")
        await trio.sleep(20)
        refused = "a submission to main was refused: it is full (2 times)"
        assert await text() == [f"noticed 20 s ago: {refused}"]
        await trio.sleep(275)
        assert await text() == [f"noticed 296 s ago: {refused}"]
        await trio.sleep(10)
        assert await text() == []
        lanes.resume()
        lanes.reset()


async def test_a_store_is_looked_at_for_a_tenth_of_the_time_and_the_age_of_figures_is_said(
    autojump_clock: MockClock,
) -> None:
    async with open_durable_lanes(MemoryStore(), {"wait": wait}, {"main": 1}) as durable:
        store: Any = durable._store
        look, looks = store.look, []

        async def slowly(question: Any) -> Any:
            if type(question).__name__ == "AllInstances":
                looks.append(trio.current_time())
                await trio.sleep(1)
            return await look(question)

        store.look = slowly
        assert durable.local is not None
        app = monitor(durable.local, durable=durable, authorize=lambda connection: "operate")
        async with looking(app) as viewer:
            await trio.sleep(30)
            # the first frame has not waited for it; then two of each look, which takes 2 s
            assert [round(at - looks[0]) for at in looks] == [0, 1, 2, 23, 24]
            await trio.sleep(10)
            frame = await viewer.next()
            age = trio.current_time() - looks[-1] - 1
            assert frame["left_out"] == [f"the store (its figures are as of {age:,.0f} s ago)"]
            assert frame["looked"]
            assert (await ask(app, "/durable")).json["age"] == pytest.approx(age, abs=0.5)
            await durable.submit("wait", delay=1000)
            (job,) = await durable.jobs()
            await (await operator(app)).act(do="promote", job=job.id)
            await trio.sleep(3)
            assert len(looks) == 7  # as somebody has acted
        await durable.cancel(job.id)
