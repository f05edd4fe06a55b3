"""The store of durable lanes on the page: instances, retries, dead letters, why a job waits."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.monitor.web import Operator, ask, looking, operator, page
from trio_lanes import LaneConfig, RateLimit, open_lanes
from trio_lanes.durable import (
    DurableLanes,
    MemoryStore,
    Retry,
    RetryPolicy,
    StoreUnavailableError,
    current_job,
    open_durable_lanes,
)
from trio_lanes.monitor import monitor


async def fail(payload: Any) -> None:
    if payload == "again":
        raise Retry(after=300, counts=False)
    raise ValueError(f"no {payload}")


async def wait(payload: Any) -> None:
    await trio.sleep_forever()


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[DurableLanes, Any, Operator]]:
    """Durable lanes, the page over them, and an operator."""
    async with open_durable_lanes(
        MemoryStore(),
        {"fail": fail, "wait": wait},
        {"main": 1, "free": math.inf, "cron": LaneConfig(paused=True)},
        retry=RetryPolicy(max_attempts=1),
        grace=0,
    ) as lanes:
        assert lanes.local is not None
        app = monitor(lanes.local, durable=lanes, authorize=lambda connection: "operate")
        yield lanes, app, await operator(app)


async def view(app: Any) -> Any:
    """The state of the store, as a page that looks again after two seconds gets it."""
    await trio.sleep(2)
    return (await ask(app, "/durable")).json


async def test_the_page_tells_of_instances_retries_and_dead_letters_by_error(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (lanes, app, _):
        for number in range(3):
            await lanes.submit("fail", number, lane="free")
        retried = await lanes.submit("fail", "again", lane="free", session="ann")
        await lanes.submit("wait", None)
        waiting = await lanes.submit("wait", None, session="ben")
        told = await view(app)
        assert told["totals"] == {"waiting": 1, "parked": 1, "running": 1, "dead": 3}
        rows = told["lanes"]
        free = rows["free"]
        assert (free["dead"], free["parked"], free["concurrency"]) == (3, 1, None)
        assert (rows["main"]["running"], rows["main"]["concurrency"]) == (1, 1)
        assert rows["cron"]["paused"]
        (instance,) = told["instances"]
        assert (instance["running"], instance["names"]) == (1, ["fail", "wait"])
        assert instance["lanes"] == {"main": 1}
        assert instance["activity"]["commits_a_second"] is None  # it has sent one heartbeat
        (group,) = told["dead"]
        assert (group["handler"], group["error"], group["count"]) == ("fail", "ValueError", 3)
        assert group["example"] == "ValueError: no 0"
        assert told["more_dead"] == 0
        assert told["ended"] == {"free": {"dead": 3}}
        parked, queued = told["jobs"]
        assert (parked["id"], parked["why"], parked["attempt"]) == (retried.id, "retry", 0)
        assert (queued["id"], queued["session"], queued["until"]) == (waiting.id, "ben", None)


async def test_the_page_tells_how_the_commits_of_an_instance_go(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (lanes, app, _):
        await trio.sleep(11)
        for number in range(20):
            await lanes.submit("fail", number, lane="free")
        await trio.sleep(10)
        (instance,) = (await view(app))["instances"]
        said = instance["activity"]
        assert 2 <= said["commits_a_second"] < 20
        assert (said["late_share"], said["batch"], said["image_age"]) == (0.0, 0, None)


async def test_a_job_says_how_many_of_its_children_have_ended(autojump_clock: MockClock) -> None:
    async def parent(payload: Any) -> None:
        run = current_job()
        assert run is not None
        async with run.children() as jobs:
            for number in range(3):
                await jobs.submit("child", number, delay=10 * number)

    async def child(payload: Any) -> None: ...

    handlers = {"parent": parent, "child": child}
    async with open_durable_lanes(MemoryStore(), handlers) as lanes:
        assert lanes.local is not None
        app = page(lanes.local, durable=lanes)
        job = await lanes.submit("parent")
        await trio.sleep(15)
        async with looking(app) as viewer:
            ((run,),) = [(await viewer.next())["jobs"]]
        assert (await ask(app, f"/job/{run['id']}")).json["children"] == [2, 3]
        assert (await ask(app, f"/durable/{job.id}")).json["children"] == [2, 3]
        await job.wait()
        assert (await ask(app, f"/durable/{job.id}")).json["children"] is None
    async with open_durable_lanes(MemoryStore(), {}, worker=False) as asking, open_lanes() as lanes:
        job = await asking.submit("parent")
        app = page(lanes, durable=asking)
        assert (await ask(app, f"/durable/{job.id}")).json["children"] is None


async def test_the_store_is_asked_every_two_seconds_however_many_look(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    health = DurableLanes.health

    async def counted(self: DurableLanes) -> Any:
        nonlocal asked
        asked += 1
        return await health(self)

    monkeypatch.setattr(DurableLanes, "health", counted)
    async with opened() as (_, app, _), trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask, app, "/durable")
            await trio.sleep(0.1)
    assert asked == 1


async def test_a_job_of_the_store_tells_the_root_of_its_wait(autojump_clock: MockClock) -> None:
    async with opened() as (lanes, app, _):
        first = await lanes.submit("wait", None)
        second = await lanes.submit("wait", None, session="ann")
        third = await lanes.submit("wait", None, session="ann")
        late = await lanes.submit("wait", None, lane="cron", delay=60)
        await trio.sleep(1)

        async def roots(id: int) -> list[tuple[list[Any], str]]:
            found = (await ask(app, f"/durable/{id}")).json
            assert found["id"] == id
            return [(root["chain"], root["text"]) for root in found["roots"]]

        assert await roots(first.id) == []
        ((chain, text),) = await roots(second.id)
        assert (chain, text[:20]) == ([], 'slots of "main": all')
        ((chain, text),) = await roots(third.id)
        assert (chain[0][0], text[:20]) == (second.id, 'slots of "main": all')
        texts = [text for _, text in await roots(late.id)]
        assert any("delay" in text for text in texts), texts
        assert (await ask(app, "/durable/99")).json is None
        assert (await ask(app, "/durable/0")).json is None


async def test_attempts_payload_and_outcome_are_shown_and_these_only_to_an_operator(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (lanes, app, _):
        job = await lanes.submit("fail", "x" * 5000, lane="free")
        await trio.sleep(1)
        told = (await ask(app, f"/durable/{job.id}")).json
        (attempt,) = told["history"]
        assert (attempt["number"], attempt["how"]) == (1, "dead")
        assert attempt["error"].startswith("ValueError: no xxx")
        assert len(told["payload"]) == len(told["outcome"]) == 4000
        assert lanes.local is not None
        reader = monitor(lanes.local, durable=lanes, authorize=lambda connection: "read")
        seen = (await ask(reader, f"/durable/{job.id}")).json
        assert ("payload" in seen, "outcome" in seen, seen["state"]) == (False, False, "dead")


async def test_an_operator_queues_one_dead_job_again_and_makes_a_parked_one_due(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (lanes, app, person):
        dead = await lanes.submit("fail", 1, lane="free")
        parked = await lanes.submit("fail", "again", lane="free")
        await trio.sleep(1)
        await lanes.pause("free")
        assert await person.act(do="retry", job=dead.id) == {"text": f"Requeued job {dead.id}"}
        done = await person.act(do="promote", job=parked.id)
        assert done == {"text": f"Made job {parked.id} due now"}
        assert {(await job.status()).state.value for job in (dead, parked)} == {"waiting"}
        refused = await person.act(409, do="retry", job=dead.id)
        assert refused["error"] == f"job {dead.id} is in another state by now; look again"
        assert "in another state" in (await person.act(409, do="promote", job=parked.id))["error"]
        notes = (await ask(app, "/hour")).json["notes"]
        assert [note["text"] for note in notes[-2:]] == [
            f"Requeued job {dead.id} (by 127.0.0.1)",
            f"Made job {parked.id} due now (by 127.0.0.1)",
        ]


async def test_the_page_tells_of_locks_quotas_paused_sessions_and_schedules(
    autojump_clock: MockClock,
) -> None:
    async def locks(payload: Any) -> None:
        async with lanes.lock("the index"):
            await trio.sleep_forever()

    async def spends(payload: Any) -> None:
        await lanes.quota("tokens").spend(tokens=payload)

    async with open_durable_lanes(
        MemoryStore(),
        {"locks": locks, "spends": spends},
        {"main": 9},
        quotas={"tokens": RateLimit(100, per=100.0, unit="tokens")},
        grace=0,
    ) as lanes:
        assert lanes.local is not None
        app = monitor(lanes.local, durable=lanes, authorize=lambda connection: "operate")
        jobs = [await lanes.submit("locks") for _ in range(2)]
        await (await lanes.submit("spends", 100)).wait()
        jobs += [await lanes.submit("spends", 50) for _ in range(2)]
        await lanes.pause("session:ann")
        await lanes.pause_for("session:ben", 60)
        view_now = await view(app)
        (lock,) = view_now["locks"]
        assert (lock["key"], lock["holding"], lock["waiting"]) == ("the index", 1, 1)
        assert [one["job"] for one in (*lock["holders"], *lock["waiters"])] == [
            jobs[0].id,
            jobs[1].id,
        ]
        (quota,) = view_now["quotas"]
        (level,) = quota["levels"]
        rate = level["limit"]
        assert (level["used"], rate["limit"], rate["unit"]) == (99, 100, "tokens")
        assert [one["job"] for one in quota["waiters"]] == [job.id for job in jobs[2:]]
        until = [(session, at is None) for session, at in view_now["paused"].items()]
        assert until == [("ann", True), ("ben", False)]
        await lanes.schedule("hourly", "spends", 1, every=3600)
        await lanes.schedule("daily", "spends", 1, cron="0 0 * * *")
        await lanes.pause("schedule:daily")
        assert (await view(app))["schedules"] == [
            {"name": "daily", "next": None, "last": None, "skipped": 0},
            {"name": "hourly", "next": 3600, "last": None, "skipped": 0},
        ]

        async def root(id: int) -> str:
            (found,) = (await ask(app, f"/durable/{id}")).json["roots"]
            return f"{found['chain']} {found['text']}"

        assert "the index" in await root(jobs[1].id)
        assert "tokens" in await root(jobs[2].id)
        assert "tokens" in await root(jobs[3].id)


async def test_an_operator_requeues_the_dead_letters_that_were_seen(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (lanes, app, person):
        for number in range(2):
            await lanes.submit("fail", number, lane="free")
        await trio.sleep(1)
        group = (await view(app))["dead"][0]
        action = {"do": "requeue", "handler": "fail", "error": "ValueError"}
        await lanes.pause("free")
        done = await person.act(**action, seen=group["count"])
        assert done == {"text": "Requeued 2 jobs of fail that ended in ValueError"}
        assert (await ask(app, "/durable")).json["totals"]["dead"] == 0
        assert (await lanes.statistics()).waiting == 2
        assert "names no handler" in (await person.act(400, do="requeue", seen=1))["error"]
        for wrong in ({}, {"seen": 0}, {"seen": 501}):
            assert "seen must be" in (await person.act(400, **action, **wrong))["error"]


async def test_of_very_many_dead_letters_those_that_were_seen_are_requeued_and_then_the_others(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (lanes, app, person):
        for number in range(600):
            await lanes.submit("fail", number, lane="free")
        await trio.sleep(100)
        await lanes.pause("free")
        action = {"do": "requeue", "handler": "fail", "error": "ValueError"}
        for count, more in ((500, 100), (100, 0)):
            await trio.sleep(3)
            told = await view(app)
            assert (told["dead"][0]["count"], told["more_dead"]) == (count, more)
            done = await person.act(**action, seen=count)
            assert done["text"].startswith(f"Requeued {count} jobs")
        assert (await lanes.statistics()).dead == 0


async def test_a_store_that_is_away_is_shown_and_is_no_trouble(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*args: Any, **options: Any) -> Any:
        raise StoreUnavailableError("the disk is full")

    async with opened() as (lanes, app, person):
        job = await lanes.submit("wait", None)
        for name in ("statistics", "root_causes", "dead", "promote"):
            monkeypatch.setattr(DurableLanes, name, away)
        assert await view(app) == {"error": "the disk is full"}
        assert (await ask(app, f"/durable/{job.id}")).json == {"error": "the disk is full"}
        action = {"do": "requeue", "handler": "fail", "error": "ValueError", "seen": 1}
        assert (await person.act(503, **action))["error"] == "the disk is full"
        told = await person.act(503, do="promote", job=job.id)
        assert told["error"] == "the disk is full"


async def test_only_who_may_read_sees_the_store_and_without_a_store_there_is_nothing(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (lanes, _, _):
        assert lanes.local is not None
        app = monitor(lanes.local, durable=lanes, authorize=lambda connection: None)
        for url in ("/durable", "/durable/1"):
            assert (await ask(app, url)).status == 403
    async with open_lanes({"main": 1}) as plain:
        app = monitor(plain, authorize=lambda connection: "operate")
        for url in ("/durable", "/durable/1"):
            assert (await ask(app, url)).json is None
        person = await operator(app)
        assert "there is no action" in (await person.act(400, do="requeue"))["error"]
        wrong: Any = plain
        with pytest.raises(TypeError, match="durable must be DurableLanes or None"):
            monitor(plain, durable=wrong)
