"""A durable turn: what it handles is decided when it starts, on the instance that runs it.

Theory of operation

Each message is one job in its session. The session runs one job at a time, in order, so the run of
a job is alone with the queue behind it. When a run begins, it reads the queue, and then:

* A message that is not first goes to the tail of the session (`Retry` with ``order="requeue"``).
  First is the oldest interrupt, else the oldest message. The poster of an interrupt puts its job
  first in the session, so it is the next that is claimed. If the poster dies before it has done
  that, the interrupt overtakes in this way: with one claim for each message that is passed, and
  after it the messages come round in the order of acceptance again.
* A collected message that is not due waits until it is (`Retry`), and keeps its place.
* Otherwise the turn begins. It takes the messages that it shares the turn with, and those that an
  overflow summarizes, in one act of the store, which is also its first checkpoint. If a message
  was withdrawn since the queue was read, the act does nothing, and the queue is read again.

Invariants:

* A message is the job that waits, or the job that runs, or part of the checkpoint of the job that
  has taken it. The store changes one into another atomically, so no crash loses or doubles it.
* A job with checkpoint data has begun. No other turn takes it.
* All messages of a turn are in its checkpoint before its handler is called. The next attempt
  handles the same messages, and gets from `DurableTurn.take` what the former attempts had taken.

Steers need no channel to the run. They wait as every message does, and the run takes them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

import trio

from trio_lanes.durable import (
    DurableRun,
    DurableState,
    NoRetry,
    PayloadError,
    Retry,
    current_job,
)

from .durable_message import (
    MAX_MESSAGES,
    MERGED,
    STEERED,
    SUMMARIZED,
    QueuedMessage,
    Rules,
    is_message,
    messages_of,
)
from .queue import Overflow, Summary, WhenBusy, one_line

RESOLUTION: Final = 1e-6
"""Seconds. A difference of stored times may be wrong by less, and a retry after less may be due at
once: a message that is due so soon is due, or virtual time would never reach it."""


@final
class DurableTurn:
    """One attempt of a turn of a `DurableInbox`. Only `inbox_handler` makes turns.

    Attributes:
      messages: the messages that the turn was started with: a `Summary`, if an overflow has removed
        messages; then one message, or the collected messages, oldest first.
      ids: the id of each of these messages. Write it with the message into the transcript: an
        attempt that finds it there goes on from there. A summary has the id of its first message.
      steers: (id, message) of each steer that the turn has taken, in former attempts also.
      run: the run of the turn's job: its session, attempt and fence.
      group: the group of the messages that the turn was started with; it takes steers of this
        group.
      checkpoint_data: the last argument of `checkpoint` in this or a former attempt; else None.
    """

    def __init__(self, run: DurableRun, kept: dict[str, Any]) -> None:
        self.run: Final = run
        self.group: Final[str | None] = kept["group"]
        self.messages: Final[list[Any]] = [content for _, content in kept["messages"]]
        self.ids: Final[list[str]] = [id for id, _ in kept["messages"]]
        if kept["summarized"]:
            self.messages[0] = Summary(self.messages[0])
        self.steers: Final[list[tuple[str, Any]]] = [(id, steer) for id, steer in kept["steers"]]
        self.checkpoint_data: Any = kept["data"]
        self._kept = kept
        self._given = 0  # how many of the steers `take` has returned in this attempt
        self._writing: Final = trio.Lock()  # each checkpoint has what the former ones have

    def __repr__(self) -> str:
        return (
            f"<trio_lanes.agents.DurableTurn of job {self.run.id}, attempt {self.run.attempt}, "
            f"{len(self.messages)} messages>"
        )

    @property
    def session(self) -> str:
        """The key of the session."""
        assert self.run.session is not None
        return self.run.session

    async def checkpoint(self, data: object) -> None:
        """Store ``data`` (JSON) for the next attempt of the turn. A checkpoint.

        Use it in place of `~trio_lanes.durable.DurableRun.checkpoint`, which would drop the
        messages of the turn.

        Raises:
          PayloadError: if ``data`` is not JSON, or too large together with the messages.
          StoreUnavailableError: if the store could not keep it.
        """
        async with self._writing:
            kept = {**self._kept, "data": data}
            await self.run.checkpoint(kept)
            self._keep(kept)
            self.checkpoint_data = data

    async def take(self) -> list[Any]:
        """Remove the steers at the head of the queue, and return them, oldest first. A checkpoint.

        The handler calls this where it can include new messages. The steers settle as STEERED now.
        A steer of another `group` is not taken, nor is a steer behind it or behind another kind of
        message. The list begins with the steers that former attempts of the turn had taken and this
        attempt has not returned yet. If the call is cancelled, the next call or the next attempt
        returns the steers.

        Raises:
          StoreUnavailableError: if the store could not do it.
        """
        async with self._writing:
            most = MAX_MESSAGES
            while found := self._steers(await self.run.queue(MAX_MESSAGES))[:most]:
                more = [[one.id, one.content] for one in found]
                kept = {**self._kept, "steers": self._kept["steers"] + more}
                try:
                    taken = await self.run.take({one.job: STEERED for one in found}, kept)
                except PayloadError:  # they do not fit into one checkpoint
                    most = len(found) // 2
                    continue
                if taken:
                    self._keep(kept)
                    self.steers.extend((one.id, one.content) for one in found)
                    break
            first, self._given = self._given, len(self.steers)
            return [steer for _, steer in self.steers[first:]]

    def _steers(self, queue: Sequence[Any]) -> list[QueuedMessage]:
        found: list[QueuedMessage] = []
        for one in sorted(_others(self.run, queue), key=lambda one: one.order):
            if one.rules.mode is not WhenBusy.STEER or one.rules.group != self.group or one.begun:
                break
            found.append(one)
        return found

    def _keep(self, kept: dict[str, Any]) -> None:
        self._kept = kept


DurableHandler: TypeAlias = Callable[[DurableTurn], Awaitable[Any]]
"""``async def handler(turn) -> result``; the result is JSON."""


def inbox_handler(handler: DurableHandler) -> Callable[[Any], Awaitable[Any]]:
    """Return a handler of durable jobs that runs the messages of a `DurableInbox` in turns.

    ::

        async def answer(turn):
            return await ask_the_model(turn.messages)

        async with open_durable_lanes(MemoryStore(), {"answer": inbox_handler(answer)}) as lanes:
            receipt = await DurableInbox(lanes, "alice", "answer").post("hello")

    ``handler`` is called with a `DurableTurn`, once for each attempt of a turn. What it raises is
    retried as for every durable job.

    Raises:
      TypeError: if ``handler`` cannot be called.
    """
    if not callable(handler):
        raise TypeError(f"handler must be an async function, not {handler!r}")

    async def serve(payload: Any) -> Any:
        run = current_job()
        assert run is not None
        if not is_message(payload) or run.session is None:
            raise NoRetry(
                f"job {run.id} is no message of a DurableInbox: use its post for {run.name!r}"
            )
        kept = run.checkpoint_data
        if kept is None:
            kept = await _begin(run, payload)
        return await handler(DurableTurn(run, kept))

    serve.__name__ = getattr(handler, "__name__", repr(handler))
    serve.__qualname__ = getattr(handler, "__qualname__", repr(handler))
    return serve


async def _begin(run: DurableRun, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Decide what the run handles. Return its first checkpoint, which has all messages."""
    most: float = math.inf  # messages that share the turn
    summarize = True
    while True:
        queue = messages_of(await run.queue(MAX_MESSAGES), run.name)
        own = next((one for one in queue if one.job == run.id), None)
        if own is None:
            # more messages of the session wait than one look shows, and this one was put first
            if payload["mode"] == WhenBusy.INTERRUPT:
                return _kept([[payload["id"], payload["message"]]], payload["group"])
            raise Retry(0.0, counts=False, order="requeue")  # or was requeued
        others = [one for one in queue if one.state is not DurableState.RUNNING]
        if any(one.state is DurableState.WAITING and one.order < own.order for one in others):
            raise Retry(0.0, counts=False, order="requeue")
        behind = [one for one in others if one.job > own.job and not one.goes_first]
        victims: list[QueuedMessage] = []
        unit = [own]
        if not (own.begun or own.goes_first):
            victims, unit = _unit([own, *behind], own.rules if summarize else None)
            if unit[0].is_collected and unit[-1] is [own, *behind][-1]:
                last = unit[-1]
                due = min(last.rules.debounce - last.age, own.rules.max_wait - own.age)
                if due > RESOLUTION:
                    raise Retry(due, counts=False, order="keep")
        unit = unit[: int(min(most, len(unit)))]
        taken = {one.job: SUMMARIZED for one in victims}
        taken.update((one.job, MERGED) for one in unit)
        taken.pop(own.job, None)
        messages = [[one.id, one.content] for one in unit]
        if victims:
            text = "\n".join(one_line(one.content) for one in victims)
            messages.insert(0, [victims[0].id, text])
        kept = _kept(messages, unit[0].rules.group, summarized=bool(victims))
        try:
            # stored, even if it is alone: else messages that come later could join the next attempt
            if not (taken or own.is_collected) or await run.take(taken, kept):
                return kept
        except PayloadError:  # they do not fit into one checkpoint
            if len(unit) > 1:
                most = len(unit) // 2
            else:
                summarize = False


def _kept(
    messages: list[list[Any]], group: str | None, *, summarized: bool = False
) -> dict[str, Any]:
    """Return the first checkpoint of a turn."""
    return {
        "messages": messages,
        "summarized": summarized,
        "group": group,
        "steers": [],
        "data": None,
    }


def _unit(
    waiting: list[QueuedMessage], rules: Rules | None
) -> tuple[list[QueuedMessage], list[QueuedMessage]]:
    """Return the messages that an overflow summarizes, and those that the turn starts with.

    Args:
      rules: of the oldest message; None: nothing is summarized.
    """
    victims: list[QueuedMessage] = []
    if rules is not None and rules.overflow is Overflow.SUMMARIZE:
        # a message that has begun is handled by a turn of its own
        free = next((n for n, one in enumerate(waiting) if one.begun), len(waiting))
        many = int(max(0, min(len(waiting) - rules.cap, free - 1)))
        victims, waiting = waiting[:many], waiting[many:]
    unit = waiting[:1]
    for one in waiting[1:]:
        if not unit[-1].is_joined_by(one):
            break
        unit.append(one)
    return victims, unit


def _others(run: DurableRun, queue: Sequence[Any]) -> list[QueuedMessage]:
    return [one for one in messages_of(queue, run.name) if one.job != run.id]
