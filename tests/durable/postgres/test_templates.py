"""What a store in PostgreSQL keeps of lanes of templates that have no jobs any more."""

from typing import Any

import psycopg
import pytest
import trio

from trio_lanes import LaneConfig, RateLimit
from trio_lanes.durable import PostgresStore, Submission, open_durable_lanes
from trio_lanes.durable._postgres.read_ahead import LANE_NUMBERS

from .server import Server

pytestmark = pytest.mark.real_processes


async def test_a_store_forgets_lanes_without_jobs(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def echo(payload: Any) -> Any:
        return payload

    monkeypatch.setattr("trio_lanes.durable._rules.engine.FORGET_LANES_EVERY", 0.0)
    limits = {"main": 1, "tenant:*": LaneConfig(concurrency=1, rate=RateLimit(100, per=0.1))}
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {"echo": echo}, limits) as lanes:
        await lanes.pause("tenant:a")
        for job in await lanes.submit_many(
            [Submission(name="echo", lane="tenant:a", priority=n) for n in (1, 1, 0, -1)]
        ):
            await lanes.resume("tenant:a")
            await job.wait()
        await lanes.pause_for("tenant:b", 0.01)
        await trio.sleep(0.2)  # the pause is over, and the rate is replenished
        for _ in range(3):
            await (await lanes.submit("echo")).wait()
        with psycopg.connect(server.dsn()) as connection:
            connection.execute(f"SET search_path = {namespace}".encode())

            numbers = LANE_NUMBERS.replace("main.", "")

            def names(question: str) -> list[str]:
                return [row[0] for row in connection.execute(question.encode())]

            # as `submit`, and other lanes that stay
            assert set(names(f"SELECT lane FROM {numbers} WHERE n <> 0")) <= {"main", "tenant:*"}
            assert names("SELECT meter FROM marks") == []
            assert names("SELECT name FROM settings WHERE kind = 'lane' ORDER BY 1") == [
                "main",
                "tenant:*",
            ]
            turns = "SELECT name FROM settings WHERE kind = 'turn' AND name LIKE 'passed%'"
            assert names(turns) == []


async def test_of_very_many_ready_lists_only_the_first_jobs_are_read_at_once(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[int]] = []

    async def note(payload: list[int]) -> None:
        ran.append(payload)

    monkeypatch.setattr("trio_lanes.durable._postgres.read_ahead.IMAGE_ROWS", 20)
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {"note": note}, {"tenant:*": 1}, capacity=4) as lanes:
        await lanes.pause("tenant:*")
        other = PostgresStore(server.dsn(), namespace=namespace)
        async with open_durable_lanes(other, {}, worker=False) as asking:
            jobs = await asking.submit_many(
                [
                    Submission(name="note", payload=[tenant, n], lane=f"tenant:{tenant}")
                    for n in range(6)
                    for tenant in range(5)
                ]
            )
            await asking.resume("tenant:*")  # the worker reads the image after it
        with trio.fail_after(60):
            for job in jobs:
                await lanes.job(job.id).wait()
    for tenant in range(5):
        assert [n for of, n in ran if of == tenant] == list(range(6))
