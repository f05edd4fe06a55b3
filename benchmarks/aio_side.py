"""Lanes in an asyncio application: the door `trio_lanes.aio`, as its documentation says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from benchmarks.asyncio_peers import LOOP as LOOP
from benchmarks.checks import WIDTH
from benchmarks.workloads import Body, Caller, Sessions, Submit
from trio_lanes import Job
from trio_lanes.aio import open_lanes

SESSION = "alice"


class AioSessions:
    keeps = frozenset({"order", "exclusion", "limit"})

    def __init__(self) -> None:
        self.handles: list[Job[int]] = []

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        async with open_lanes({"main": WIDTH}) as lanes:
            submit_nowait = lanes.submit_nowait
            hold = self.handles.append

            def submit(body: Body, i: int, key: str) -> None:
                hold(submit_nowait(body, i, session=key))

            def submit_and_forget(body: Body, i: int, key: str) -> None:
                submit_nowait(body, i, session=key)

            yield submit if keep else submit_and_forget

    async def results(self) -> Sequence[object]:
        return [await handle.wait() for handle in self.handles]


class AioCaller:
    """`run`, through a session lane and a global lane."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[Body, int], Awaitable[object]]]:
        async with open_lanes({"main": WIDTH}) as lanes:

            def call(body: Body, i: int) -> Awaitable[object]:
                return lanes.run(body, i, session=SESSION)

            yield call


SESSIONS: dict[str, Callable[[], Sessions]] = {"lanes": AioSessions}
CALLERS: dict[str, Callable[[], Caller]] = {"lanes": AioCaller}
