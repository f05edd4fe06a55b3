"""A durable inbox: messages of one session that wait in a store, with a rule for a busy session.

A post reads the queue of the session, submits the job of the message, and then acts on other
messages, as its mode says. The three are separate acts of the store. What a crash or another
instance does between them can be seen, and nothing of it loses or doubles a message:

=============================  =====================================================================
between the acts of a post     so
=============================  =====================================================================
the session becomes busy or    the mode counts for the queue that the post has read: a REJECT may be
idle                           accepted beside a message of another instance
other instances post           more than ``cap`` messages may wait, by one for each of them
the poster dies                the message is accepted, and what it should replace, drop or abort
                               stays: both are handled, in order
the message to replace starts  it is handled, before the new one: only messages that wait are taken
                               out
the turn to abort ends         nothing is aborted: the abort names the job of that turn
=============================  =====================================================================

`durable_turn` has the theory of what happens to a message afterwards.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any, ClassVar, Final

import attrs
import trio

from trio_lanes import JobCancelledError, resolve_global_lane
from trio_lanes.durable import (
    DurableJobError,
    DurableLanes,
    DurableState,
    JobTakenError,
    KeyConflictError,
    ResultGoneError,
    current_job,
)

from ..._config import check as _check
from ..._config.names import session_key
from .durable_message import (
    DROPPED,
    MAX_MESSAGES,
    NOT_ENDED,
    REPLACED,
    QueuedMessage,
    Rules,
    edit_of,
    key_of,
    messages_of,
    payload_of,
)
from .durable_receipt import DurableReceipt
from .queue import GO_FIRST, Overflow, QueueOptions, WhenBusy
from .receipt import Settled, SettledKind

MAX_ID: Final = 200


class DurableInbox:
    """The messages of one session, kept in a store, with a rule for messages during a turn.

    ::

        async def answer(turn):
            return await ask_the_model(turn.messages)

        async with open_durable_lanes(MemoryStore(), {"answer": inbox_handler(answer)}) as lanes:
            receipt = await DurableInbox(lanes, "alice", "answer").post("hello", id="m-1")
            print((await receipt.settled()).result)

    It is what an `Inbox` is, for messages that outlive the process: each message is a durable job
    of its session. An inbox has no state of its own, so any number of them, on any instances, may
    be inboxes of one session. Each method that is async is a checkpoint, and raises
    `~trio_lanes.durable.StoreUnavailableError` if the store cannot do the call now.

    Args:
      lanes: the durable lanes that accept the messages; ``worker=False`` will do.
      session: the session of the turns.
      handler: the name of a handler that `inbox_handler` has made, on the instances that run turns.
      when_busy, lane, debounce, max_wait, cap, overflow: as of an `Inbox`. But with SUMMARIZE all
        messages wait in the store, and the turn that begins summarizes the oldest of too many.

    Raises:
      TypeError, ValueError: for a bad value.
    """

    _receipt_type: ClassVar[type[DurableReceipt]] = DurableReceipt
    _check_lanes = staticmethod(_check.lanes_of_trio)

    def __init__(
        self,
        lanes: DurableLanes,
        session: str,
        handler: str,
        *,
        when_busy: WhenBusy = WhenBusy.STEER,
        lane: str = "main",
        debounce: float = 0.5,
        max_wait: float = 5.0,
        cap: int | float = 20,
        overflow: Overflow = Overflow.SUMMARIZE,
    ) -> None:
        self._check_lanes(lanes)
        if not isinstance(lanes, DurableLanes):
            raise TypeError(f"lanes must be DurableLanes, not {lanes!r}")
        if not isinstance(handler, str):
            raise TypeError(f"handler must be a string, not {handler!r}")
        if not handler.strip():
            raise ValueError(f"handler must not be blank, got {handler!r}")
        self.session: Final = session_key(session)
        self.handler: Final = handler
        self.lane: Final = resolve_global_lane(lane)
        self.when_busy: Final = WhenBusy(when_busy)
        self._lanes: Final = lanes
        self._options: Final = QueueOptions(debounce, max_wait, cap, overflow)

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.DurableInbox of session {self.session!r}, {self.handler!r}>"

    # ---- queries

    async def waiting(self) -> list[DurableReceipt]:
        """Return the receipts of the waiting messages, in the order in which they are handled."""
        waiting = [one for one in await self._messages() if one.state is not DurableState.RUNNING]
        waiting.sort(key=lambda one: one.order)
        return [self._receipt(one.id, one.job) for one in waiting]

    async def is_busy(self) -> bool:
        """Return whether a turn is active or a message waits."""
        return bool(await self._messages())

    def receipt(self, id: str, job: int) -> DurableReceipt:
        """Return a receipt of the message with an id, of any instance. Not a checkpoint.

        Args:
          job: the number of its job: ``DurableReceipt.job.id``.
        """
        return self._receipt(id, job)

    # ---- posting

    async def post(
        self,
        message: Any,
        *,
        when_busy: WhenBusy | None = None,
        id: str | None = None,
        group: str | None = None,
    ) -> DurableReceipt:
        """Accept ``message`` (JSON), and return its receipt: the store has the message then.

        If the call is cancelled, or raises `~trio_lanes.durable.StoreUnavailableError`, the message
        may have been accepted: post it again with its id.

        Args:
          when_busy, group: as of `Inbox.post`.
          id: an id for the message; a new one unless it is given. A second post with the same id
            returns a receipt of the first message, while the store remembers it: until its end,
            and ``result_ttl`` longer. A message that was refused is not remembered.

        Raises:
          TypeError, ValueError: for a bad id or group, or an unknown mode.
          PayloadError: if the message is not JSON, or larger than the store's ``max_payload``.
          UnknownHandlerError: if this instance has handlers, but none of that name.
          UnknownLaneError, LaneFullError: if the lane does not exist, or has no room.
          LanesClosedError: if the lanes are closed; a running handler may still post.
        """
        mode = WhenBusy(self.when_busy if when_busy is None else when_busy)
        id = _id(id)
        if group is not None and not isinstance(group, str):
            raise TypeError(f"group must be a string or None, not {group!r}")
        key = key_of(self.handler, self.session, id)
        found = await self._messages()
        known = next((one for one in found if one.id == id), None)
        if known is not None:
            return self._receipt(id, known.job)
        if found and mode is WhenBusy.REJECT:
            return await self._refusal(id, key, SettledKind.REJECTED)
        waiting = [one for one in found if one.state is not DurableState.RUNNING]
        replaced: list[QueuedMessage] = []
        dropped: list[QueuedMessage] = []
        if mode is WhenBusy.REPLACE:
            replaced = [one for one in waiting if one.rules.mode is mode and not one.begun]
        if len(waiting) >= self._options.cap and not replaced:
            victims = [one for one in waiting if not (one.rules.goes_first or one.begun)]
            if self._options.overflow is Overflow.DROP_NEWEST or not victims:
                return await self._refusal(id, key, SettledKind.DROPPED)
            if self._options.overflow is Overflow.DROP_OLDEST:
                dropped = victims[:1]
        aborted = set(await self._running(found)) if mode in GO_FIRST and found else set()
        if mode is WhenBusy.ROLLBACK:  # a turn between two attempts has written, too
            aborted.update(one.job for one in found if one.begun)
        rules = Rules(
            mode=mode,
            group=group,
            runs_at_once=not found,
            **attrs.asdict(self._options),
            rolls_back=_to_roll_back(mode, [one for one in found if one.job in aborted]),
            waited=_passed_on(waiting[waiting.index(dropped[0]) :], mode, group) if dropped else 0,
        )
        try:
            job = await self._lanes.submit(
                self.handler,
                payload_of(id, message, rules),
                session=self.session,
                lane=self.lane,
                key=key,
            )
        except KeyConflictError as conflict:
            # the first message with the id counts, whatever differs
            return self._receipt(id, conflict.id)
        others = [(one.job, REPLACED, False) for one in replaced]
        others += [(one.job, DROPPED, False) for one in dropped]
        if mode in GO_FIRST and found:
            await self._lanes.put_first(job.id)
            others += [(one, f"interrupted by {id}", True) for one in aborted]
        first = next((one for one in waiting if one not in dropped), None)
        if (
            first is not None
            and first.state is DurableState.PARKED
            and first.rules.is_collected
            and not first.begun
            and not waiting[-1].rules.is_joined_by(rules)
        ):  # collected messages are due when another kind is behind them
            await self._lanes.promote(first.job)
        if others and (await job.status()).state in NOT_ENDED:  # else the store remembers its end
            for other, reason, running in others:
                await self._lanes.cancel(other, reason, running=running)
        return self._receipt(id, job.id)

    async def _edit(self, job: int, message: Any) -> bool:
        """Submit an edit of a message; withdraw it, if a turn may not have seen it."""
        before = await self._waiting(job)
        if before is None:
            return False
        edit = await self._lanes.submit(
            self.handler, edit_of(before, message), session=self.session, lane=self.lane
        )
        after = await self._waiting(job)
        if after is not None and edit.id in after.edits:
            return True  # each turn that takes the message from now on finds the edit
        if await self._lanes.cancel(edit.id, running=False):
            return False
        try:
            await edit.wait()
        except JobCancelledError as error:
            return isinstance(error, JobTakenError)
        return False

    async def _waiting(self, job: int) -> QueuedMessage | None:
        found = (one for one in await self._messages() if one.job == job and one.waits)
        return next(found, None)

    # ---- aborting

    async def abort(self, reason: str | None = None, timeout: float = 15.0) -> bool:
        """Cancel the waiting messages and the active turn, and wait until the turn has ended.

        As `Inbox.abort`; a turn that calls this method for its own session is cancelled.
        """
        found = await self._messages()
        for one in reversed(found):  # from the tail, so that none of them starts meanwhile
            await self._lanes.cancel(one.job, reason)
        mine = current_job()
        running = [
            one.job
            for one in found
            if one.state is DurableState.RUNNING and (mine is None or one.job != mine.id)
        ]
        with trio.move_on_after(max(0.0, timeout)) as in_time:
            for job in running:
                with suppress(JobCancelledError, DurableJobError, ResultGoneError):  # it has ended
                    await self._lanes.job(job).wait()
        return not in_time.cancelled_caught

    # ---- inside

    async def _messages(self) -> list[QueuedMessage]:
        return messages_of(await self._lanes.queue(self.session, MAX_MESSAGES), self.handler)

    async def _running(self, found: list[QueuedMessage]) -> list[int]:
        """Return the job of the turn that an interrupt aborts, as one item, or nothing."""
        if len(found) < MAX_MESSAGES or any(one.state is DurableState.RUNNING for one in found):
            return _to_abort(found)
        status = await self._lanes.running(self.session)  # it may be behind those that were found
        return [] if status is None or status.name != self.handler else [status.id]

    def _receipt(self, id: str, job: int) -> DurableReceipt:
        return self._receipt_type(self, id, self._lanes.job(job))

    async def _refusal(self, id: str, key: str, kind: SettledKind) -> DurableReceipt:
        """Return the receipt of a message that is refused, unless its id is known."""
        known = await self._lanes.keyed(key)
        if known is not None:  # it has ended, and its store remembers it
            return self._receipt(id, known.id)
        return self._receipt_type(self, id, None, Settled(kind))


def _passed_on(line: list[QueuedMessage], mode: WhenBusy, group: str | None) -> float:
    """Return for how long the first message has waited, which is dropped, if the new one joins it.

    Else the messages before the new one are due at once.
    """
    collected = all(one.rules.is_collected and one.rules.group == group for one in line)
    return line[0].waited if collected and mode is WhenBusy.COLLECT else 0.0


def _to_abort(found: list[QueuedMessage]) -> list[int]:
    """Return the job that runs, as one item, or nothing.

    A job that runs has no turn if it is not first: it is about to go to the tail. If an older
    interrupt waits, its poster aborts the turn.
    """
    waiting = [one for one in found if one.state is DurableState.WAITING]
    return [
        one.job
        for one in found
        if one.state is DurableState.RUNNING
        and not any(other.rules.goes_first or other.order < one.order for other in waiting)
    ]


def _to_roll_back(mode: WhenBusy, aborted: list[QueuedMessage]) -> list[str]:
    """Return the turns that the turn of a message takes back, which aborts those of others.

    A turn that was aborted itself may not have come to take back what it had to.
    """
    own = [one.id for one in aborted if mode is WhenBusy.ROLLBACK]
    return own + [id for one in aborted for id in one.rules.rolls_back]


def _id(id: str | None) -> str:
    if id is None:
        return secrets.token_hex(16)
    if not isinstance(id, str):
        raise TypeError(f"id must be a string, not {id!r}")
    if not 0 < len(id) <= MAX_ID:
        raise ValueError(f"id must have 1 to {MAX_ID} characters, got {len(id)}")
    return id
