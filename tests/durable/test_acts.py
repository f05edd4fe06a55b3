"""Acts and questions are values: each is one record, which can be sent, recorded and done again."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
from trio.testing import MockClock

import trio_lanes
from tests.durable.conformance.bench import opening
from trio_lanes import RateLimit
from trio_lanes.durable import (
    DurableSchedule,
    DurableState,
    LaneLimit,
    MemoryStore,
    Selection,
    SubmittedJob,
    open_durable_lanes,
)
from trio_lanes.durable._wire.codec import decode, encode
from trio_lanes.durable.acts import VERBS
from trio_lanes.durable.acts.inspection import AllStatistics, JobsOf
from trio_lanes.durable.acts.orders import Clear
from trio_lanes.durable.store import Act

ROOT = Path(trio_lanes.__file__).parent
ALL_JOBS = JobsOf(Selection(), 0, 9)
T = TypeVar("T")

LANES, LOCKS, OPENING = "_lanes/lanes.py", "_lanes/locks.py", "_lanes/opening.py"
JOB, LOG, RUN, DEADLOCK = "_runs/job.py", "_lanes/log.py", "_runs/run.py", "_runs/deadlock.py"
SCHEDULES, FIRING = "_lanes/schedules.py", "_runs/schedules.py"
VALKEY = "_valkey/store.py"  # a script answers in pages

# by name: its record with its rule, its Lua, and then its doors
FILES = {
    "Enqueue": ("acts/jobs.py", "engine.lua", LANES, RUN, VALKEY, "_wire/server.py"),
    "Compare": ("acts/runs.py", "runs.lua", "_runs/lease.py"),
    "Checkpoint": ("acts/runs.py", "runs.lua", RUN),
    "Take": ("acts/runs.py", "runs.lua", RUN),
    "LendSlot": ("acts/runs.py", "runs.lua", RUN),
    "RegainSlot": ("acts/runs.py", "runs.lua", RUN),
    "EmitEvent": ("acts/runs.py", "runs.lua", RUN),
    "Send": ("acts/runs.py", "runs.lua", LANES),
    "Acquire": ("acts/locks.py", "locks.lua", LOCKS),
    "Spend": ("acts/locks.py", "locks.lua", LOCKS),
    "Release": ("acts/locks.py", "locks.lua", LOCKS),
    "Withdraw": ("acts/locks.py", "locks.lua", LOCKS),
    "Settle": ("acts/locks.py", "locks.lua", LOCKS),
    "ResetQuota": ("acts/locks.py", "locks.lua", LANES),
    "LevelsOf": ("acts/locks.py", "locks.lua", LOCKS, LANES),
    "Grant": ("acts/locks.py", "locks.lua", LOCKS),
    "WriteLog": ("acts/logs.py", "logs.lua", LOG),
    "DropLog": ("acts/logs.py", "logs.lua", LOG),
    "LogPage": ("acts/logs.py", "logs.lua", LOG),
    "Cancel": ("acts/orders.py", "orders.lua", LANES, RUN, "acts/schedules.py"),
    "PutFirst": ("acts/orders.py", "orders.lua", LANES),
    "Promote": ("acts/orders.py", "orders.lua", LANES),
    "AbortRun": ("acts/orders.py", "orders.lua", LANES),
    "Clear": ("acts/orders.py", "orders.lua", LANES),
    "Pause": ("acts/orders.py", "orders.lua", LANES),
    "Resume": ("acts/orders.py", "orders.lua", LANES),
    "Configure": ("acts/orders.py", "orders.lua", LANES),
    "Requeue": ("acts/orders.py", "orders.lua", LANES),
    "Purge": ("acts/orders.py", "orders.lua", LANES),
    "AllLanes": ("acts/inspection.py", "inspection.lua", LANES, OPENING, DEADLOCK),
    "AllGroups": ("acts/inspection.py", "inspection.lua", LANES, OPENING, DEADLOCK),
    "AllRules": ("acts/inspection.py", "inspection.lua", LANES, OPENING),
    "HeldSnapshots": ("acts/inspection.py", "inspection.lua", "_lanes/verdicts.py"),
    "AllInstances": ("acts/inspection.py", "inspection.lua", LANES),
    "AllStatistics": ("acts/inspection.py", "inspection.lua", LANES),
    "QueueOf": ("acts/inspection.py", "inspection.lua", LANES, RUN),
    "StatusOf": ("acts/inspection.py", "inspection.lua", JOB, DEADLOCK),
    "RunningIn": ("acts/inspection.py", "inspection.lua", LANES),
    "Keyed": ("acts/inspection.py", "inspection.lua", LANES),
    "BlockersOf": ("acts/inspection.py", "blockers.lua", LANES),
    "JobsOf": ("acts/inspection.py", "inspection.lua", LANES, VALKEY),
    "Check": ("acts/inspection.py", "inspection.lua", LANES, VALKEY),
    "Repair": ("acts/inspection.py", "inspection.lua", LANES),
    "PutSchedule": ("acts/schedules.py", "schedules.lua", SCHEDULES),
    "FireSchedule": ("acts/schedules.py", "schedules.lua", FIRING),
    "PauseSchedule": ("acts/schedules.py", "schedules.lua", SCHEDULES),
    "DropSchedule": ("acts/schedules.py", "schedules.lua", LANES),
    "SchedulesOf": ("acts/schedules.py", "schedules.lua", SCHEDULES, FIRING),
}


EXAMPLES: Mapping[str, Any] = {
    "str": "a",
    "str | None": None,
    "int": 7,
    "int | None": 8,
    "bool": True,
    "float": math.inf,
    "float | None": None,
    "DurableSchedule": DurableSchedule(name="s", job=SubmittedJob(name="echo"), every=5.0, id=4),
    "ServedAt": 2.5,
    "Selection": Selection(states=frozenset({DurableState.DEAD}), lane="main"),
    "Sequence[SubmittedJob]": [SubmittedJob(name="echo", cost={"tokens": 2})],
    "Sequence[int]": [1, 2],
    "Sequence[RateLimit]": (RateLimit(5),),
    "Mapping[int, str]": {1: "{}"},
    "Costs": {"tokens": -3, "usd": Decimal("-0.25")},
    "Mapping[str, LaneLimit | int | float | None]": {"main": LaneLimit(2), "a": 3, "b": None},
    "Mapping[str, GroupLimit] | None": None,
    "Mapping[str, Any]": {"hold": True},
}
"""A value for each type of a field."""


def example(kind: type[Any]) -> Any:
    """An act or question of a kind."""
    return kind(*(EXAMPLES[str(field.type)] for field in attrs.fields(kind)))


def files_by_name() -> dict[str, set[str]]:
    """The files of trio_lanes whose code names an act or question."""
    found: dict[str, set[str]] = {name: set() for name in VERBS}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = next(
                (getattr(node, one) for one in ("name", "attr", "id") if hasattr(node, one)), ""
            )
            if name in found:
                found[name].add(str(path.relative_to(ROOT)))
    for path in (ROOT / "durable/_valkey/lua").iterdir():
        verbs = re.findall(r"^function (?:READS|WRITES|WITH_TICKET)\.(\w+)", path.read_text(), re.M)
        for name, kind in VERBS.items():
            if kind.name in verbs:
                found[name].add(path.name)
    return found


def test_an_act_is_named_by_its_record_its_lua_and_its_doors_and_by_no_other_file() -> None:
    expected = {
        name: {file if file.endswith(".lua") else f"durable/{file}" for file in files}
        for name, files in FILES.items()
    }
    assert files_by_name() == expected


@pytest.mark.parametrize("name", VERBS)
def test_an_act_is_a_frozen_value_that_says_what_it_is_and_goes_over_a_wire(name: str) -> None:
    asked = example(VERBS[name])
    assert repr(asked).startswith(f"{name}(")
    assert decode(encode(asked)) == asked == attrs.evolve(asked)
    for field in attrs.fields(type(asked)):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(asked, field.name, None)


def test_a_message_names_no_other_record() -> None:
    class Evil(Act[None]):
        def apply(self, queues: Any) -> None: ...

    with pytest.raises(KeyError):
        encode(Evil())
    with pytest.raises(KeyError):
        decode('{"": "Evil", "v": []}')


class Recording(MemoryStore):
    """A store that keeps the acts that it has done."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Act[Any], str]] = []

    async def do(self, act: Act[T], ticket: str) -> T:
        answer = await super().do(act, ticket)
        self.done.append((act, ticket))
        return answer


async def test_recorded_acts_can_be_done_again_by_another_store(autojump_clock: MockClock) -> None:
    first, second = Recording(), MemoryStore()
    async with open_durable_lanes(first, {}, {"main": 2}, worker=False) as lanes:
        jobs = [await lanes.submit("echo", n, session="s") for n in range(3)]
        await lanes.put_first(jobs[2].id)
        await lanes.cancel(jobs[0].id)
        await lanes.configure({"main": 5})
        await lanes.pause("session:s")
        seen = [await first.look(question) for question in (AllStatistics(), ALL_JOBS)]
    async with second.open(opening()):
        for act, ticket in first.done:
            await second.do(decode(encode(act)), ticket)
        again = [await second.look(question) for question in (AllStatistics(), ALL_JOBS)]
    assert [type(act).__name__ for act, _ in first.done][3:] == [
        *("PutFirst", "Cancel", "Configure", "Pause")
    ]
    assert [one.state for one in again[1]] == [one.state for one in seen[1]]
    assert again[0].lanes["main"] == seen[0].lanes["main"]
    assert list(again[0].paused) == ["s"]


async def test_an_act_in_portions_is_done_whole_by_its_rule(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_durable_lanes(store, {}, {"main": 2}, worker=False) as lanes:
        ids = [(await lanes.submit("echo", n)).id for n in range(9)]
        clear = Clear("main", None, '{"lane": "main", "reason": null}')
        assert await store._transact(clear.apply) == 9
        assert not await lanes.cancel(ids[0])
