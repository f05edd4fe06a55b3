"""`LaneInstrument` as a base class: an inherited hook does nothing, and costs nothing."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
import trio

from trio_lanes import Job, LaneInstrument, open_lanes

HOOKS = [
    (name, function)
    for name, function in vars(LaneInstrument).items()
    if inspect.isfunction(function) and name.startswith(("job_", "lane", "cancel_", "deadlock_"))
]


class Starts(LaneInstrument):
    def __init__(self) -> None:
        self.names: list[str] = []

    def job_started(self, job: Job[Any]) -> None:
        self.names.append(job.name)


async def nothing() -> None:
    await trio.sleep(3)


class Deaf(LaneInstrument):
    pass


@pytest.mark.parametrize(("name", "function"), HOOKS, ids=[name for name, _ in HOOKS])
def test_a_hook_that_is_not_overridden_does_nothing(name: str, function: Any) -> None:
    arguments = [object()] * (len(inspect.signature(function).parameters) - 1)
    assert getattr(Deaf(), name)(*arguments) is None


async def test_a_hook_that_is_not_overridden_is_never_called(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*args: object) -> None:
        raise AssertionError

    for name, _ in HOOKS:
        monkeypatch.setattr(LaneInstrument, name, never)
    starts = Starts()
    with caplog.at_level(logging.ERROR, "trio_lanes"):
        async with open_lanes({"main": 1}, instruments=[starts]) as lanes:
            for name in "ab":
                lanes.submit_nowait(nothing, session="alice", name=name)
    assert starts.names == ["a", "b"]
    assert caplog.records == []
