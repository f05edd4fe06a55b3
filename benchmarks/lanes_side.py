"""Lanes, as their own documentation says: `submit_nowait` for handles, `run` for a value."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from benchmarks.checks import WIDTH
from benchmarks.trio_peers import LOOP as LOOP
from benchmarks.workloads import Body, Caller, Line, Sessions, Submit, Waiters
from trio_lanes import Job, JobCancelledError, JobState, LaneConfig, Lanes, open_lanes

SESSION = "alice"


class LaneSessions:
    keeps = frozenset({"order", "exclusion", "limit"})
    opener = staticmethod(open_lanes)

    def __init__(self) -> None:
        self.handles: list[Job[int]] = []

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        async with self.opener({"main": WIDTH}) as lanes:
            submit_nowait = lanes.submit_nowait
            hold = self.handles.append

            def submit(body: Body, i: int, key: str) -> None:
                hold(submit_nowait(body, i, session=key))

            def submit_and_forget(body: Body, i: int, key: str) -> None:
                submit_nowait(body, i, session=key)

            yield submit if keep else submit_and_forget

    async def results(self) -> Sequence[object]:
        return [await handle.wait() for handle in self.handles]


class LaneCaller:
    """`run`, through a session lane and a global lane, or through the global lane alone."""

    opener = staticmethod(open_lanes)

    def __init__(self, session: str | None = SESSION) -> None:
        self.session = session

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[Body, int], Awaitable[object]]]:
        async with self.opener({"main": WIDTH}) as lanes:

            def call(body: Body, i: int) -> Awaitable[object]:
                return lanes.run(body, i, session=self.session)

            yield call


class LaneLine:
    def __init__(self) -> None:
        self.handles: list[Job[int]] = []

    @asynccontextmanager
    async def open(self, n: int) -> AsyncIterator[Callable[[Body, int, int], None]]:
        async with open_lanes({"main": LaneConfig(concurrency=1, paused=True)}) as lanes:
            self._lanes = lanes

            def put(body: Body, i: int, priority: int) -> None:
                self.handles.append(lanes.submit_nowait(body, i, priority=priority))

            yield put

    def start(self) -> None:
        self._lanes.resume("main")

    async def results(self) -> Sequence[object]:
        return [await handle.wait() for handle in self.handles]


class LaneWaiters:
    """Jobs behind a paused lane; with sessions, or without any (`plain`)."""

    _lanes: Lanes

    def __init__(self, *, plain: bool = False) -> None:
        self.plain = plain
        self.handles: list[Job[int]] = []

    @asynccontextmanager
    async def open(self, n: int) -> AsyncIterator[Submit]:
        config = LaneConfig(concurrency=WIDTH, paused=True)
        async with open_lanes({"main": config}) as self._lanes:
            submit_nowait = self._lanes.submit_nowait

            def submit(body: Body, i: int, key: str) -> None:
                self.handles.append(submit_nowait(body, i, session=key))

            def submit_plain(body: Body, i: int, key: str) -> None:
                self.handles.append(submit_nowait(body, i))

            yield submit_plain if self.plain else submit

    def clear(self) -> None:
        self._lanes.clear("main")

    def cancel(self, i: int) -> None:
        self.handles[i].cancel()

    async def ended(self) -> None:
        await self._lanes.wait_idle()

    async def cancelled(self) -> int:
        # `.exception` also counts as having looked at the failure, which keeps the log quiet.
        return sum(
            handle.state is JobState.CANCELLED and isinstance(handle.exception, JobCancelledError)
            for handle in self.handles
        )


SESSIONS: dict[str, Callable[[], Sessions]] = {"lanes": LaneSessions}
CALLERS: dict[str, Callable[[], Caller]] = {
    "lanes": LaneCaller,
    "lanes.plain": lambda: LaneCaller(None),
}
LINES: dict[str, Callable[[], Line]] = {"lanes": LaneLine}
WAITERS: dict[str, Callable[[], Waiters]] = {
    "lanes": LaneWaiters,
    "lanes.plain": lambda: LaneWaiters(plain=True),
}
