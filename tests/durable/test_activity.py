"""`StoreActivity`: what the heartbeat of an instance says of its commits."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import ANY

import attrs
import pytest
import trio
from trio.testing import MockClock

from trio_lanes.durable import (
    InstanceInfo,
    MemoryStore,
    SqliteStore,
    StoreActivity,
    open_durable_lanes,
)
from trio_lanes.durable._memory.tables import MemoryTables
from trio_lanes.durable._rules import commits
from trio_lanes.durable._rules.commits import Commits
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable._sqlite.guest import host
from trio_lanes.durable._wire.codec import decode, encode
from trio_lanes.durable.acts.inspection import AllInstances

from .conformance.bench import opening


async def echo(value: object) -> object:
    return value


class Beating:
    """One instance in memory, whose store says how commits go as a test wants it."""

    def __init__(self) -> None:
        self.engine = Engine(MemoryTables(), opening(lease_ttl=30.0))
        self.engine.now = 100.0

    def join(self, activity: StoreActivity | None) -> None:
        until = self.engine.now + self.engine.opening.lease_ttl
        self.engine.join("me", lease_until=until, activity=activity)

    def beat_after(self, seconds: float, activity: StoreActivity | None) -> StoreActivity | None:
        self.engine.now += seconds
        lease = self.engine.opening.lease_ttl
        assert self.engine.beat("me", self.engine.now + lease, activity)
        (info,) = AllInstances().answer(self.engine)
        return info.activity


def beating(activity: StoreActivity | None) -> Beating:
    one = Beating()
    one.join(activity)
    return one


def test_a_heartbeat_says_the_commits_a_second_since_the_one_before_and_which_part_was_late() -> (
    None
):
    one = beating(StoreActivity(commits=10, late=2))
    said = one.beat_after(2.0, StoreActivity(batch=7, commits=16, late=4, longest_wait=0.5))
    assert said == StoreActivity(
        batch=7, commits=16, late=4, longest_wait=0.5, commits_a_second=3.0, late_share=0.25
    )
    said = one.beat_after(1.0, StoreActivity(commits=16, late=4))
    assert said is not None
    assert (said.commits_a_second, said.late_share) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("before", "seconds"),
    [(None, 2.0), (StoreActivity(commits=1), 0.05), (StoreActivity(commits=9), 2.0)],
    ids=["none before", "just before", "store opened anew"],
)
def test_without_a_heartbeat_to_compare_with_no_rates_are_said(
    before: StoreActivity | None, seconds: float
) -> None:
    said = beating(before).beat_after(seconds, StoreActivity(commits=2))
    assert said == StoreActivity(commits=2)


def test_the_age_of_an_image_is_counted_until_the_heartbeat() -> None:
    one = beating(None)
    said = one.beat_after(1.0, StoreActivity(commits=1, image_at=99.5))
    assert said is not None
    assert said.image_age == 1.5
    said = one.beat_after(1.0, StoreActivity(commits=1, image_at=102.5))  # clocks differ
    assert said is not None
    assert said.image_age == 0.0


def test_a_heartbeat_that_knows_nothing_says_nothing() -> None:
    assert beating(StoreActivity(commits=1)).beat_after(1.0, None) is None


def test_a_join_that_is_asked_again_says_how_commits_go_as_a_heartbeat_does() -> None:
    one = beating(StoreActivity(commits=1))
    one.engine.now += 1.0
    one.join(StoreActivity(commits=3))
    (info,) = AllInstances().answer(one.engine)
    assert info.activity is not None
    assert info.activity.commits_a_second == 2.0


def test_the_longest_wait_is_of_this_minute_and_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 6000.0
    monkeypatch.setattr(commits, "monotonic", lambda: now)
    noted = Commits()
    assert noted.activity().longest_wait == 0.0
    noted.waited(3.0)
    noted.waited(1.0)
    now += 59
    assert noted.activity().longest_wait == 3.0
    now += 60
    noted.waited(2.0)
    assert noted.activity().longest_wait == 3.0
    now += 60
    assert noted.activity().longest_wait == 2.0
    now += 60
    assert noted.activity().longest_wait == 0.0


def test_rows_of_older_and_of_newer_versions_are_read() -> None:
    info = InstanceInfo(
        "a", "here", 7, 1.0, 2.0, ("echo",), 0, activity=StoreActivity(commits=3, batch=9)
    )
    text = encode(info)
    assert decode(text) == info
    older = text[: text.index(',{"":"StoreActivity"')] + "]}"
    assert decode(older) == attrs.evolve(info, activity=None)
    newer = text[:-2] + ',{"":"WhatOnlyTheNextVersionKnows","v":[]}]}'
    assert decode(newer) == info


async def test_each_instance_in_memory_says_how_many_commits_it_has_made(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with (
        open_durable_lanes(store, {"echo": echo}, {"main": 2}) as lanes,
        open_durable_lanes(store.another(), {"echo": echo}, {"main": 2}),
    ):
        await trio.sleep(11)
        for _ in range(20):
            await (await lanes.submit("echo", 1)).wait()
        await trio.sleep(10)
        said = [info.activity for info in await lanes.instances()]
    rates = 0.0
    for one in said:
        assert one is not None
        assert (one.batch, one.late, one.late_share, one.image_at) == (0, 0, 0.0, None)
        assert one.commits_a_second is not None
        rates += one.commits_a_second
    assert len(said) == 2
    assert rates >= 4  # 20 jobs in 10 seconds, with an acceptance and a step at least


async def test_workers_of_a_served_file_say_what_the_process_that_serves_it_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    async with host(SqliteStore(path)) as owner:
        one, other = owner.guest(), owner.guest()
        async with one.open(opening(lease_ttl=30.0)), other.open(opening(lease_ttl=30.0)):
            await one.join("one")
            await other.join("other")
            before = one.activity()
            assert before is not None
            await other.look(AllInstances())  # writes nothing
            assert one.activity() == attrs.evolve(before, longest_wait=ANY)
            with closing(sqlite3.connect(path, isolation_level=None)) as another:
                another.execute("BEGIN IMMEDIATE")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(other.beat)
                    await trio.sleep(0.1)
                    another.execute("COMMIT")
            assert await one.beat()
            infos = await one.look(AllInstances())
            after = {info.id: info.activity for info in infos}
    assert after["one"] is not None
    assert after["one"].commits == before.commits + 1
    assert after["one"].longest_wait >= 0.05
    assert after["other"] is not None
    assert after["other"].commits == before.commits


async def test_the_only_worker_of_a_file_sends_no_heartbeat_and_says_nothing(
    tmp_path: Path,
) -> None:
    async with open_durable_lanes(
        SqliteStore(tmp_path / "jobs.db"), {"echo": echo}, {"main": 1}
    ) as lanes:
        (info,) = await lanes.instances()
    assert (info.lease_until, info.activity) == (math.inf, None)
