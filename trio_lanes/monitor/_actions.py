"""The actions of an operator, and how they are undone.

An action that can be undone is done at once, and its answer offers to undo it for some seconds.
An action that cannot (cancel, clear, reset) is bound to what its viewer has seen: the request says
the state, or the number of jobs, and is refused if that is not true any more.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, final

import trio

from trio_lanes import (
    JobState,
    Lane,
    Lanes,
    LaneStatistics,
    SessionStatistics,
    UnknownLaneError,
)
from trio_lanes.durable import StoreError

from ._frames import Frames
from ._guard import RefusedError
from ._notes import Notes, actor
from ._shown import Frame, clipped

UNDO_SECONDS: Final = 10.0
_MAX_UNDOS: Final = 50
_A_SECOND: Final = 5.0  # actions
_BURST: Final = 20.0
_HIGHEST: Final = 1_000_000  # limit or priority


class _Undo(NamedTuple):
    until: float
    text: str
    call: Callable[[], None]


@final
class Actions:
    """Does what operators ask for."""

    def __init__(self, lanes: Lanes, frames: Frames, notes: Notes) -> None:
        self._lanes: Final = lanes
        self._frames: Final = frames
        self._notes: Final = notes
        self._undos: Final[dict[str, _Undo]] = {}
        self._budget = _BURST
        self._counted_at = -math.inf
        self.verbs: Final[dict[str, Callable[[Mapping[str, Any]], Frame | Awaitable[Frame]]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "limit": self._limit,
            "priority": self._priority,
            "cancel": self._cancel,
            "clear": self._clear,
            "reset": self._reset,
            "undo": self._undo,
        }
        """What can be done, by the word for it; other modules add to it."""

    async def do(self, asked: object, by: str) -> Frame:
        """Do what ``asked``, decoded JSON, says; return what to tell the operator, who is ``by``.

        It is a checkpoint only for an action on a store.

        Raises:
          RefusedError: if it was not done, and nothing has changed.
        """
        if not isinstance(asked, dict) or not isinstance(asked.get("do"), str):
            raise RefusedError(400, "the request is not an action")
        verb = self.verbs.get(asked["do"])
        if verb is None:
            raise RefusedError(400, f"there is no action {clipped(asked['do'])!r}")
        now = trio.current_time()
        self._budget = min(_BURST, self._budget + (now - self._counted_at) * _A_SECOND)
        self._counted_at = now
        if self._budget < 1:
            raise RefusedError(429, "too many actions; wait a second")
        self._budget -= 1
        token = actor.set(by)
        try:
            answer = verb(asked)
            return await answer if isinstance(answer, Awaitable) else answer
        except (UnknownLaneError, TypeError, ValueError) as error:
            raise RefusedError(400, clipped(error, 300)) from error
        except StoreError as error:
            raise RefusedError(503, clipped(error, 300)) from error
        finally:
            actor.reset(token)

    # ---- what can be undone

    def _done(self, text: str, undo: Callable[[], None]) -> Frame:
        key = secrets.token_urlsafe(9)
        self._undos[key] = _Undo(trio.current_time() + UNDO_SECONDS, text, undo)
        if len(self._undos) > _MAX_UNDOS:
            del self._undos[next(iter(self._undos))]
        return {"text": text, "undo": key, "seconds": UNDO_SECONDS}

    def _undo(self, asked: Mapping[str, Any]) -> Frame:
        key = asked.get("key")
        undo = self._undos.pop(key, None) if isinstance(key, str) else None
        if undo is None or undo.until < trio.current_time():
            raise RefusedError(410, "this cannot be undone any more; set it back by an action")
        undo.call()
        self._notes.add("info", "undone", "", f"undone: {undo.text}")
        return {"text": f"Undone: {undo.text}"}

    def _pause(self, asked: Mapping[str, Any]) -> Frame:
        name = self._name(asked)
        paused, until = self._pause_of(name)
        if paused and until is None:
            raise RefusedError(409, f"{name} is paused already")
        self._lanes.pause(name)
        return self._done(f"Paused {clipped(name)}", lambda: self._restore(name, paused, until))

    def _resume(self, asked: Mapping[str, Any]) -> Frame:
        name = self._name(asked)
        paused, until = self._pause_of(name)
        if not paused:
            raise RefusedError(409, f"{name} is not paused")
        self._lanes.resume(name)
        return self._done(f"Resumed {clipped(name)}", lambda: self._restore(name, paused, until))

    def _restore(self, name: str, paused: bool, until: float | None) -> None:
        self._lanes.resume(name)
        if paused and until is None:
            self._lanes.pause(name)
        elif until is not None and until > trio.current_time():
            self._lanes.pause_for(name, until - trio.current_time())

    def _limit(self, asked: Mapping[str, Any]) -> Frame:
        name = self._name(asked)
        lane, limit = self._lanes.lane(name), whole(asked, "value")
        if limit < 0:
            raise RefusedError(400, "a limit is not below 0")
        old = lane.concurrency
        lane.concurrency = limit

        def undo() -> None:
            lane.concurrency = old

        return self._done(f"Limit of {clipped(name)}: {old} → {limit}", undo)

    def _priority(self, asked: Mapping[str, Any]) -> Frame:
        job, priority = self._job(asked), whole(asked, "value")
        if job.state is not JobState.WAITING:
            raise RefusedError(409, f"job {job.id} does not wait any more")
        old, job.priority = job.priority, priority

        def undo() -> None:
            if job.state is JobState.WAITING:
                job.priority = old

        text = f"Priority of job {job.id}: {old} → {priority}"
        self._notes.add("info", "priority", job.lane, text, job.id)
        return self._done(text, undo)

    # ---- what cannot

    def _cancel(self, asked: Mapping[str, Any]) -> Frame:
        job = self._job(asked)
        if job.state.value != asked.get("seen"):
            raise RefusedError(409, f"job {job.id} is {job.state.value} by now; look again")
        job.cancel("by an operator")
        text = f"Cancelled job {job.id} {clipped(job.name)}"
        self._notes.add("warning", "cancelled", job.lane, text, job.id)
        return {"text": text}

    def _clear(self, asked: Mapping[str, Any]) -> Frame:
        name = self._name(asked)
        self._check_seen(asked, sum(lane.waiting for lane in self._meant(name)), "wait")
        count = self._lanes.clear(name, reason="by an operator")
        return {"text": f"Cleared {clipped(name)} of {count} jobs"}

    def _reset(self, asked: Mapping[str, Any]) -> Frame:
        name = self._name(asked)
        self._check_seen(asked, sum(lane.active for lane in self._meant(name)), "run")
        return {"text": f"Reset {clipped(name)}; {self._lanes.reset(name)} jobs were given up"}

    def _check_seen(self, asked: Mapping[str, Any], there: int, what: str) -> None:
        if there > whole(asked, "seen"):  # fewer is what was seen, and less
            raise RefusedError(409, f"{there} jobs {what} by now; look again")

    # ---- of what

    def _name(self, asked: Mapping[str, Any]) -> str:
        name = asked.get("lane")
        if not isinstance(name, str) or not name.strip() or len(name) > 200:
            raise RefusedError(400, "the request names no lane")
        return name

    def _job(self, asked: Mapping[str, Any]) -> Any:
        job = self._frames.find(whole(asked, "job"))
        if job is None:
            raise RefusedError(404, "there is no such job any more: search for its number")
        return job

    def _meant(self, name: str) -> list[LaneStatistics | SessionStatistics]:
        """Return the statistics of the lanes that ``name`` means."""
        if name.startswith("session:"):
            return [self._lanes.session(name.removeprefix("session:")).statistics()]
        members = members_of(self._lanes, name) or [self._lanes.lane(name)]
        return [lane.statistics() for lane in members]

    def _pause_of(self, name: str) -> tuple[bool, float | None]:
        """Return whether the lanes that ``name`` means are paused, and until when."""
        meant = self._meant(name)
        return all(lane.paused for lane in meant), meant[0].paused_until


def members_of(lanes: Lanes, name: str) -> list[Lane]:
    """Return the lane with that name, or the lanes of a template; without any of them, none."""
    return [lane for lane in lanes.lanes() if name in (lane.name, lane.label)]


def whole(asked: Mapping[str, Any], field: str) -> int:
    """Return a whole number of a request.

    Raises:
      RefusedError: if it is something else, or is far too big.
    """
    value = asked.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _HIGHEST * 1000:
        raise RefusedError(400, f"{field} must be a whole number")
    return value
