"""Lanes in an asyncio application: the door `trio_lanes.aio`, as its documentation says."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.asyncio_peers import LOOP as LOOP
from benchmarks.lanes_side import LaneCaller, LaneSessions
from benchmarks.workloads import Caller, Sessions
from trio_lanes.aio import open_lanes


class AioSessions(LaneSessions):
    opener = staticmethod(open_lanes)


class AioCaller(LaneCaller):
    opener = staticmethod(open_lanes)


SESSIONS: dict[str, Callable[[], Sessions]] = {"lanes": AioSessions}
CALLERS: dict[str, Callable[[], Caller]] = {"lanes": AioCaller}
