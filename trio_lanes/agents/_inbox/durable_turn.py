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

Edits

An edit is a job too, behind its message. A turn that takes the message takes its edits in the same
act, with the last content. The editor looks at the queue after its submission: if the message
waits, each later look shows the edit. A turn may have looked before that, and take the message
after it; so it looks again when it has taken messages, and takes their late edits. If the message
waits no more, the editor withdraws the edit, unless a turn has taken it. An edit that is run itself
when its message has ended came too late, and ends.

Invariants:

* A message is the job that waits, or the job that runs, or part of the checkpoint of the job that
  has taken it. The store changes one into another atomically, so no crash loses or doubles it.
* A job with checkpoint data has begun. No other turn takes it.
* All messages of a turn are in its checkpoint before its handler is called. The next attempt
  handles the same messages, and gets from `DurableTurn.take` what the former attempts had taken.

Steers need no channel to the run. They wait as every message does, and the run takes them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeAlias
from zlib import crc32

import attrs
import trio

from trio_lanes import LaneFullError, UnknownLaneError
from trio_lanes.durable import (
    DurableRun,
    DurableState,
    NoRetry,
    PayloadError,
    Retry,
    current_job,
)

from ..._config import check as _check
from ..._config.names import name_of
from .._runs.shared_questions import PREFIX, KeptQuestion, digest_of, kept_from
from .._runs.shared_registry import hearing
from .._tools.calls import AnyCall, ToolResult, call_id, call_record
from .base_turn import BaseTurn
from .durable_message import (
    EDITED,
    MAX_MESSAGES,
    MERGED,
    STEERED,
    SUMMARIZED,
    QueuedMessage,
    Rules,
    edits_of,
    is_edit,
    is_message,
    key_of,
    message_from,
    messages_of,
    payload_of,
    taken_as,
)
from .queue import Overflow, Summary, WhenBusy, one_line

_log: Final = logging.getLogger("trio_lanes.agents")

_Question: TypeAlias = tuple[str, str | None]  # its id, and the digest of what it shows

RESOLUTION: Final = 1e-6
"""Seconds. A difference of stored times may be wrong by less, and a retry after less may be due at
once: a message that is due so soon is due, or virtual time would never reach it."""

EDIT_LATER: Final = 1.0
"""Seconds for which an edit leaves the queue to its message, which may be between two attempts. The
turn of the message takes it meanwhile."""


class DurableTurn(BaseTurn):
    """One attempt of a turn of a `DurableInbox`; it is a `Run`. Only `inbox_handler` makes turns.

    A store that is away delays a turn, and fails none: see `~trio_lanes.durable.DurableRun`.

    Attributes:
      id: the id of the turn, in all attempts: that of the message whose job it is. Begin the turn
        of a conversation with it, and take out by it what a former attempt has written.
      rolls_back: the ids of the turns that its message has aborted in mode ROLLBACK: take them out
        of the conversation.
      messages, group: as of a `Turn`.
      ids: the id of each of these messages. Write it with the message into the transcript: an
        attempt that finds it there goes on from there. A summary has the id of its first message.
      steers: (id, message) of each steer that the turn has taken, in former attempts also.
      run: the run of the turn's job: its session, attempt and fence.
      checkpoint_data: the last argument of `checkpoint` in this or a former attempt; else None.
      is_streaming: whether a registry may give it messages, which `take` returns; False until the
        handler sets it.
    """

    def __init__(self, run: DurableRun, kept: dict[str, Any], id: str, rules: Rules) -> None:
        super().__init__()
        self.run: Final = run
        self.id: Final = id
        self.rolls_back: Final[Sequence[str]] = rules.rolls_back
        self._rules: Final = rules
        self.group: Final[str | None] = kept["group"]
        self.messages: Final[list[Any]] = [content for _, content in kept["messages"]]
        self.ids: Final[list[str]] = [id for id, _ in kept["messages"]]
        if kept["summarized"]:
            self.messages[0] = Summary(self.messages[0])
        self.steers: Final[list[tuple[str, Any]]] = [(id, steer) for id, steer in kept["steers"]]
        self.checkpoint_data: Any = kept["data"]
        self._kept = kept
        self._given = 0  # how many of the steers `take` has returned in this attempt
        self._taken: Final[set[str]] = set()  # ids of steers that may have late edits
        self._sent: dict[int, Any] = {}  # {its number: a message of a registry, not taken yet}
        self._sent_before: Final = count().__next__
        self._asked: Final = {  # {id of a question: the digest of what it shows}
            name.removeprefix(PREFIX): kept_from(value).of
            for name, value in kept.items()
            if name.startswith(PREFIX)
        }
        self._outputs: Final[dict[_Question, Any]] = {}  # {question: the decision that came first}
        self._submitted: Final = trio.lowlevel.ParkingLot()
        self._hears = False  # whether a call of `approve` hears of decisions for all
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
        """
        await self._write("data", data)
        self.checkpoint_data = data

    async def approve(
        self, call: AnyCall, data: Any = None, timeout: float = math.inf
    ) -> ToolResult:
        """Ask for a decision on ``call``, wait for it, and keep it. A checkpoint.

        ::

            async def answer(turn):
                decision = await turn.approve({"id": "call-1", "name": "refund"})
                return "refunded" if decision.value == "yes" else "refused"

        The question is an event of the job (`~trio_lanes.durable.DurableJob.events`):
        ``{"approve": "call-1", "data": data}``. `SharedRunRegistry.submit` decides, on any
        instance: ``await registry.submit("alice", {"call-1": "yes"})``; its result says whether
        that decision stands, or no attempt of the turn runs now: then try again. Meanwhile the turn
        lends its slot. The first decision counts, also for every later attempt: they return it at
        once, and do not ask again. If the process dies before it has stored that it asked, the same
        question is asked twice. A cancellation, and so a drain, leaves the question open.
        `SharedRunRegistry.questions` lists what is open.

        A decision is for what was shown, ``call`` with ``data``. Another call with an id that the
        turn has asked about, or the same one with other data, is another question: its id in the
        event, and for `submit`, has ``#2`` behind it, or ``#3``, and so on.

        Args:
          call: the call, with an id. An attempt that has to find its decision must ask about the
            same call: keep what a model has said by `checkpoint` first.
          data: JSON for those who decide; None for the call as it is.
          timeout: seconds in which this attempt has to get the decision.

        Returns:
          The decision as ``value``. Its kind is ``"result"``; or ``"cancelled"`` if the time was
          over, and ``value`` says so.

        Raises:
          TypeError, ValueError: for a call without an id, or a bad timeout.
          PayloadError: if the question is not JSON, or larger than 64 KiB, or too large together
            with the messages of the turn.
        """
        _check.seconds("timeout", timeout)
        shown = call_record(call) if data is None else data
        of = digest_of(call_record(call), shown)
        id = self._question(call_id(call), of)
        name = PREFIX + id
        if name not in self._kept:
            try:
                await self._write(name, KeptQuestion(of, data=shown).as_json())
                await self._show(id, shown)
            except PayloadError:
                self._kept.pop(name, None)
                del self._asked[id]
                raise
        elif not kept_from(self._kept[name]).is_shown:
            await self._show(id, shown)
        kept = kept_from(self._kept[name])
        if kept.decision is None:
            decision = await self._decision((id, kept.of), timeout)
            kept = KeptQuestion(kept.of, is_shown=True, decision=decision)
            await self._write(name, kept.as_json())
        else:
            await trio.lowlevel.checkpoint()
        assert kept.decision is not None
        return ToolResult(call_id(call), *kept.decision)  # type: ignore[arg-type]  # its kind

    def _question(self, call: str, of: str) -> str:
        """Return the id of the question about ``call`` that shows what has the digest ``of``."""
        for number in count(1):
            id = call if number == 1 else f"{call}#{number}"
            # None: it was kept before there were digests, and is about this call
            if self._asked.setdefault(id, of) in (of, None):
                return id
        raise AssertionError  # pragma: no cover - the loop has no end

    async def _show(self, id: str, shown: Any) -> None:
        await self.run.emit({"approve": id, "data": shown})
        kept = kept_from(self._kept[PREFIX + id])
        await self._write(PREFIX + id, attrs.evolve(kept, is_shown=True).as_json())

    async def _decision(self, question: _Question, timeout: float) -> tuple[str, Any]:
        async with self.run.yield_slot():
            with trio.move_on_after(timeout):
                while question not in self._outputs:
                    await (self._submitted.park() if self._hears else self._hear(question))
        if question in self._outputs:
            return "result", self._outputs[question]
        return "cancelled", f"not decided in {timeout:g} s"

    async def _hear(self, question: _Question) -> None:
        """Hear of decisions until that on ``question`` is there; then another call goes on."""
        self._hears = True
        try:
            async with hearing(self.run, self, self.queue_message, self.submit):
                while question not in self._outputs:
                    await self._submitted.park()
        finally:
            self._hears = False
            self._submitted.unpark_all()

    def submit(self, outputs: Mapping[str, Any]) -> None:
        """Decide on questions, as `SharedRunRegistry.submit` does anywhere: ``{id: value}``.

        The first decision counts. Not a checkpoint.

        Raises:
          ValueError: if the turn has not asked about one of them; then nothing is decided.
        """
        unknown = [id for id in outputs if id not in self._asked]
        if unknown:
            raise ValueError(f"the turn has not asked about {', '.join(map(repr, unknown))}")
        for id, value in outputs.items():
            self._decide({id: value}, of=self._asked[id])

    def _decide(self, outputs: Mapping[str, Any], *, of: str | None) -> None:
        """Decide on questions that show what has the digest ``of``, asked by now or later."""
        for id, value in outputs.items():
            self._outputs.setdefault((id, of), value)
        self._submitted.unpark_all()

    async def _write(self, name: str, value: Any) -> None:
        async with self._writing:
            kept = {**self._kept, name: value}
            await self.run.checkpoint(kept)
            self._kept = kept

    def queue_message(self, message: Any, /) -> bool:
        """Have the next `take` return ``message``, behind the steers; False after an abort.

        If no `take` returns it, it is posted to the inbox, as a steer of its group, when the
        handler has returned or was aborted. A message that is no JSON, or for which the lane has no
        room, is lost then, which is logged. After a crash or a failure a `SharedRunRegistry` gives
        the message again; a `RunRegistry` does not. Not a checkpoint.
        """
        if not self.abort_called:
            self.post_later(message)
        return not self.abort_called

    def post_later(self, message: Any, /) -> None:
        """As `queue_message`, also after an abort."""
        self._sent[self._sent_before()] = message

    async def _post_rest(self) -> None:
        """Post the messages of registries that no `take` has returned."""
        steer = attrs.evolve(
            self._rules, mode=WhenBusy.STEER, group=self.group, runs_at_once=False, rolls_back=[]
        )
        for number, message in [*self._sent.items()]:
            # each attempt has the same id for it, since a registry gives all messages again
            id = f"{self.run.id}.{number}.{crc32(repr(message).encode()):x}"
            try:
                await self.run.follow(
                    payload_of(id, message, steer), key_of(self.run.name, self.session, id)
                )
            except (PayloadError, LaneFullError, UnknownLaneError):
                _log.exception("a message that %r has not taken is lost: %r", self, message)
            del self._sent[number]

    def abort(self, reason: str | None = None) -> None:
        """Cancel the handler, and the job of the turn: its messages settle as CANCELLED.

        If the handler returns or raises nevertheless, the job ends by that. Not a checkpoint.
        """
        self._abort(reason)

    async def take(self) -> list[Any]:
        """Remove and return the steers at the head of the queue, as `Turn.take`. A checkpoint.

        The list begins with the steers that former attempts of the turn had taken and this attempt
        has not returned yet; it ends with the messages of registries. It is empty while compacting.
        If the call is cancelled, the next call or the next attempt returns the steers.
        """
        if self.is_compacting:
            await trio.lowlevel.checkpoint()
            return []
        async with self._writing:
            most = MAX_MESSAGES
            while found := self._steers(await self.run.queue(MAX_MESSAGES))[:most]:
                more = [[one.id, one.content] for one in found]
                kept = {**self._kept, "steers": self._kept["steers"] + more}
                try:
                    taken = await self.run.take(taken_as(STEERED, found), kept)
                except PayloadError:  # they do not fit into one checkpoint
                    most = len(found) // 2
                    continue
                if taken:  # else one of them was withdrawn meanwhile
                    self._kept = kept
                    self._taken.update(one.id for one in found)
                    break
            self._kept = await _with_late_edits(self.run, self._kept, self._taken)
            self._taken.clear()
            steers = self._kept["steers"][len(self.steers) :]
            self.steers.extend((id, steer) for id, steer in steers)
            first, self._given = self._given, len(self.steers)
            sent, self._sent = self._sent, {}
            return [*(steer for _, steer in self.steers[first:]), *sent.values()]

    def _steers(self, queue: Sequence[Any]) -> list[QueuedMessage]:
        found: list[QueuedMessage] = []
        for one in sorted(_others(self.run, queue), key=lambda one: one.order):
            if one.rules.mode is not WhenBusy.STEER or one.rules.group != self.group or one.begun:
                break
            found.append(one)
        return found


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
    return serving(handler, DurableTurn)


def serving(handler: DurableHandler, kind: type[DurableTurn]) -> Callable[[Any], Awaitable[Any]]:
    """Return what `inbox_handler` returns, with turns of that ``kind``."""
    if not callable(handler):
        raise TypeError(f"handler must be an async function, not {handler!r}")

    async def serve(payload: Any) -> Any:
        run = current_job()
        assert run is not None
        if is_edit(payload) and run.session is not None:
            queue = messages_of(await run.queue(MAX_MESSAGES), run.name)
            if any(one.job == payload["edits"] for one in queue):  # which has fallen behind it
                raise Retry(EDIT_LATER, counts=False, order="requeue")
            return None
        if not is_message(payload) or run.session is None:
            raise NoRetry(
                f"job {run.id} is no message of a DurableInbox: use its post for {run.name!r}"
            )
        id, content, rules = message_from(payload)
        kept = run.checkpoint_data
        if kept is None:
            kept = await _begin(run, _kept([[id, content]], rules.group), rules)
        else:  # the former attempt may have ended before it had seen the edits of what it had taken
            ids = {id for id, _ in kept["messages"] + kept["steers"]} - {id}
            kept = await _with_late_edits(run, kept, ids)
        turn = kind(run, kept, id, rules)
        with turn._handler_scope:
            result = await handler(turn)
            await turn._post_rest()
            return result
        # The turn was aborted, and the handler let the cancellation out.
        await turn._post_rest()
        await run.cancel(turn._reason)
        await trio.sleep_forever()  # until this instance hears of it

    serve.__name__ = serve.__qualname__ = name_of(handler)
    return serve


async def _begin(run: DurableRun, alone: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """Decide what the run handles. Return its first checkpoint, which has all messages.

    Args:
      alone: the first checkpoint, if the turn has the run's own message alone.
      rules: of that message.
    """
    most: float = math.inf  # messages that share the turn
    summarize = True
    while True:
        queue = messages_of(await run.queue(MAX_MESSAGES), run.name)
        own = next((one for one in queue if one.job == run.id), None)
        if own is None:
            # more messages of the session wait than one look shows, and this one was put first
            if rules.goes_first:
                return alone
            raise Retry(0.0, counts=False, order="requeue")  # or was requeued
        others = [one for one in queue if one.state is not DurableState.RUNNING]
        if any(one.state is DurableState.WAITING and one.order < own.order for one in others):
            raise Retry(0.0, counts=False, order="requeue")
        # An older one that does not wait is parked, and comes round by itself.
        behind = [one for one in others if one.job > own.job and not one.rules.goes_first]
        victims: list[QueuedMessage] = []
        unit = [own]
        if not (own.begun or own.rules.goes_first):
            victims, unit = _unit([own, *behind], own.rules if summarize else None)
            # With a message behind it that cannot join, the unit is complete, and due at once.
            if unit[0].rules.is_collected and unit[-1] is [own, *behind][-1]:
                last = unit[-1]
                oldest = max(one.waited for one in unit)
                due = min(last.rules.debounce - last.age, own.rules.max_wait - oldest)
                if due > RESOLUTION:
                    raise Retry(due, counts=False, order="keep")
        unit = unit[: int(min(most, len(unit)))]
        taken = taken_as(SUMMARIZED, victims) | taken_as(MERGED, unit)
        taken.pop(own.job, None)  # it is the job that takes the others
        messages = [[one.id, one.content] for one in unit]
        if victims:
            text = "\n".join(one_line(one.content) for one in victims)
            messages.insert(0, [victims[0].id, text])
        kept = _kept(messages, unit[0].rules.group, summarized=bool(victims))
        try:
            # stored, even if it is alone: else messages that come later could join the next attempt
            if not (taken or own.rules.is_collected):
                return kept
            if await run.take(taken, kept):
                return await _with_late_edits(run, kept, {one.id for one in unit} - {own.id})
        except PayloadError:  # they do not fit into one checkpoint
            if len(unit) > 1:
                most = len(unit) // 2
            else:
                summarize = False


async def _with_late_edits(
    run: DurableRun, kept: dict[str, Any], ids: Collection[str]
) -> dict[str, Any]:
    """Return a checkpoint with the edits of ``ids`` that came while these were taken; store it.

    The id of the turn's own message is not among ``ids``: a summary has it, which keeps the texts
    that it was made of.
    """
    while ids and (late := edits_of(await run.queue(MAX_MESSAGES), run.name, ids)):
        last = {edit["id"]: edit["message"] for edit in late.values()}
        edited = kept | {
            name: [[id, last.get(id, content)] for id, content in kept[name]]
            for name in ("messages", "steers")
        }
        try:
            if await run.take(dict.fromkeys(late, EDITED), edited):
                kept = edited
        except PayloadError:  # they do not fit into one checkpoint
            break
    return kept


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
    first = 0
    if rules is not None and rules.overflow is Overflow.SUMMARIZE:
        # a message that has begun is handled by a turn of its own
        free = next((n for n, one in enumerate(waiting) if one.begun), len(waiting))
        # at least one is left, for the turn to start with
        first = int(max(0, min(len(waiting) - rules.cap, free - 1)))
    unit = waiting[first : first + 1]
    for one in waiting[first + 1 :]:
        if one.begun or not unit[-1].rules.is_joined_by(one.rules):
            break
        unit.append(one)
    return waiting[:first], unit


def _others(run: DurableRun, queue: Sequence[Any]) -> list[QueuedMessage]:
    return [one for one in messages_of(queue, run.name) if one.job != run.id]
