"""A turn in the process that runs it: what it answers was accepted by any process.

A turn knows its responses from their files, and hears of what comes meanwhile by the messages of
its job, which belong to the job: a run after a crash hears them again. Before the client has calls,
the turn keeps them in its checkpoint. So if its process dies then, the next run writes what the
conversation has, up to these calls, and waits for the same outputs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import trio

from trio_lanes import LaneError
from trio_lanes.agents import Conversation, ConversationTurn, DurableTurn, Message
from trio_lanes.durable import DurableLanes, Retry

from ..chat_agent.model import ToolCall
from ..gateway.asks import Ask, Live, Pending, Reach
from ..gateway.backlog import OPEN, ROOM_SECONDS
from ..gateway.engine import TURNS, Engine
from ..openai_api.errors import BadInputError, Refused
from ..openai_api.items import exchange_of
from ..openai_api.log import EventLog
from ..openai_api.wire import Answer, Json, session_of

LOOK_SECONDS: Final = 0.05  # between two looks at a file, or at the older runs of a thread


class SharedReach(Reach):
    """One run of a turn, and how it reaches all processes."""

    begins_again = True

    def __init__(
        self, turn: DurableTurn, engine: Engine, durable: DurableLanes, folder: Path
    ) -> None:
        super().__init__(lambda reason: self._scope.cancel())
        self._turn: Final = turn
        self._engine: Final = engine
        self._durable: Final = durable
        self._folder: Final = folder
        self._ids: Final[list[str]] = turn.messages  # the responses that it begins with
        self._session: Final = session_of(self._ids[0])  # of the conversation
        self._scope: Final = trio.CancelScope()
        self._answers: Final[dict[str, Answer]] = {}  # that this run writes
        self._unwanted: Final[set[str]] = set()  # responses that were cancelled
        self._early: Final[list[Ask]] = []  # outputs that came before the turn waits for them
        self._waits: Final[list[Json]] = [*(turn.checkpoint_data or ())]  # of all runs
        self._known: Final[set[str | None]] = set()  # the steered ones that it asks again
        self._before: list[Message] = []  # what the run before has left in the conversation

    async def run(self) -> None:
        """Run the turn to its end, or go on with it."""
        try:
            if asks := await self._asks():
                await self._answer_all(asks)
        except Retry:
            raise
        except Exception as error:
            if not self._answers or not all(map(self._has_ended, self._answers)):
                is_known = isinstance(error, LaneError | OSError)  # of a store that is away
                raise Retry(ROOM_SECONDS, counts=not is_known) from error
        for ask in self._early:
            ask.answer.end("failed", too_late().problem)
        for log in [log for wait in self._waits for log in self._logs(wait)]:
            log.delete()

    async def _asks(self) -> list[Ask]:
        """Return the requests that this run answers, at first; none if the turn has ended."""
        asks = [ask for id in self._ids if (ask := self._load(id)) is not None]
        messages: list[Message] = []
        if any(ask.answer.status != "queued" for ask in asks):  # a run was here before
            messages = await Conversation(self._session, self._engine.store).messages()
            if self._was_finished(messages):
                return []
        while self._waits and not all(map(self._has_ended, self._waits[-1]["responses"])):
            self._waits.pop()  # the client does not know of these calls
        if self._waits:
            calls = _calls(self._waits[-1])
            own = [exchange_of(m) for m in messages if any(c["id"] in calls for c in m.tool_calls)]
            self._before = [message for message in messages if exchange_of(message) in own[-1:]]
        asked = set(map(_asked_in, self._before))
        asks = [a for a in asks if a.answer.id in asked or not a.answer.ended.is_set()]
        if not asks:  # they were cancelled, but the turn may have taken others
            asks = self._open(steer for _, steer in self._turn.steers)
            self._known.update(ask.answer.id for ask in asks)
        return asks

    async def _answer_all(self, asks: list[Ask]) -> None:
        if not self._waits and not await self._is_next():
            raise Retry(LOOK_SECONDS, counts=False)
        await self._roll_back()
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear)
            with self._scope:
                try:
                    answer = self._engine.answer
                    await self._engine.lanes.run(answer, self._session, asks, self, lane=TURNS)
                except Exception as error:
                    failed = error  # it leaves as it is, not in a group
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    def _was_finished(self, messages: list[Message]) -> bool:
        """Return whether the conversation has the whole turn; then end its responses."""
        for message in messages:
            if message.usage and self._ids[0] in message.usage["responses"]:
                for ask in filter(None, map(self._load, message.usage["responses"])):
                    ask.answer.text(str(message.content))
                    ask.answer.end("completed")
                return True
        return False

    async def _is_next(self) -> bool:
        """Whether the older runs of this thread have begun, so their answers have their places."""
        if self._turn.session == self._session:
            return True
        runs = await open_runs(self._durable, self._session)
        older = {id for job, id in runs.items() if job < self._turn.run.id}
        return not older or older <= set(map(_asked_in, await self._engine.messages(self._session)))

    async def _roll_back(self) -> None:
        """Take out the turns that the request of this turn rolls back."""
        if self._turn.rolls_back:
            ids = {id.partition("~")[0] for id in self._turn.rolls_back}
            conversation = Conversation(self._session, self._engine.store)
            messages = await conversation.messages()
            for exchange in {exchange_of(m) for m in messages if _asked_in(m) in ids}:
                await conversation.take_out(exchange)

    def _load(self, id: str) -> Ask | None:
        """Return a request; if its response has not ended, this run writes it from now on."""
        log = EventLog(self._folder, id)
        found = log.read()
        if found.request is None or not found.events:
            return None  # the request was withdrawn
        answer = Answer.again(found.events)
        if not answer.ended.is_set():
            log.note(self._turn.run.id)
            log.record(answer)
            if id in self._unwanted:
                answer.end("cancelled")
            # if this run is cancelled, another goes on, or the process that cancels ends it
            answer.is_closing = lambda: True
            answer.start_over()
            answer.succeeds = found.request.get("succeeds", False)
            self._answers[id] = answer
        return Ask(answer, **found.request["ask"])

    def _open(self, ids: Iterable[str]) -> list[Ask]:
        """Return those of the requests whose responses have not ended."""
        asks = [ask for ask in map(self._load, ids) if ask is not None]
        return [ask for ask in asks if not ask.answer.ended.is_set()]

    def _answer(self, id: str) -> Answer:
        return Answer.again(EventLog(self._folder, id).read().events)

    def _has_ended(self, id: str) -> bool:
        return self._answer(id).ended.is_set()

    # ---- what comes meanwhile

    async def _hear(self) -> None:
        async for message in self._turn.run.messages():
            if (id := message.get("cancel")) in self._answers:
                self._answers[id].cancel(message["reason"])
            elif id is not None:
                self._unwanted.add(id)
            elif (ask := self._load(message["outputs"])) is not None:
                self._bring(ask)

    def _bring(self, ask: Ask) -> None:
        """Hand over outputs, also of a response that has ended: others may wait for the turn."""
        try:
            if not self._engine.resume(ask):
                self._early.append(ask)
        except BadInputError as error:
            ask.answer.end("failed", error.problem)

    async def take(self) -> list[Ask]:
        return self._open(id for id in await self._turn.take() if id not in self._known)

    # ---- calls of the client

    async def restore(self, exchange: ConversationTurn, live: Live) -> list[ToolCall]:
        left: list[ToolCall] = []
        if self._waits:
            calls, live.ids[:] = _calls(self._waits[-1]), self._waits[-1]["responses"]
            live.stored[:] = [id for id in live.ids if self._answer(id).is_stored]
            for message in self._before:
                if left and message.role != "tool":
                    break  # what came behind the outputs comes again
                if _asked_in(message) not in self._ids:
                    left = await self._write(exchange, message, calls) or left
        return left

    async def _write(
        self, exchange: ConversationTurn, message: Message, calls: list[str]
    ) -> list[ToolCall]:
        """Write a message again; return those of the calls that are its own."""
        if message.role == "user":
            await exchange.steer(message.content)
            self._known.add(_asked_in(message))
        elif message.role == "tool":
            if message.tool_call_id not in calls:
                await exchange.result(message.tool_call_id or "", message.content)
        else:
            await exchange.append(message.content)
            if message.tool_calls:
                await exchange.call(message.tool_calls)
        return [ToolCall(**call) for call in message.tool_calls if call["id"] in calls]

    @asynccontextmanager
    async def waiting(self, pending: Pending) -> AsyncIterator[None]:
        wait = {"calls": [*pending.gate.missing], "responses": pending.responses}
        if wait not in self._waits:
            self._waits.append(wait)
            await self._turn.checkpoint(self._waits)
        place = {"session": self._session, "job": self._turn.run.id, **wait}
        for log in self._logs(wait):  # by which any process finds the turn
            log.delete()
            await trio.to_thread.run_sync(log.create, place)
        early, self._early[:] = [*self._early], []
        for ask in early:
            self._bring(ask)
        async with super().waiting(pending), self._turn.run.yield_slot():
            yield
        for log in self._logs(wait):
            log.delete()

    def _logs(self, wait: Json) -> list[EventLog]:
        names = [*wait["calls"], f"session:{self._session}"]
        return [EventLog(self._folder, wait_name(name)) for name in names]


def too_late() -> Refused:
    """Return the error for outputs that no turn waits for any more."""
    return Refused(409, "the turn does not wait for these outputs any more", "too_late")


def wait_name(name: str) -> str:
    """Return the name of the file about a call that waits, or about what its session waits for."""
    return f"wait_{sha256(name.encode()).hexdigest()[:24]}"


async def open_runs(durable: DurableLanes, thread: str) -> dict[int, str]:
    """Return the first responses of the runs of a thread that go on, or wait, by their jobs."""
    jobs = await durable.jobs(TURNS, states=OPEN, handler="respond", limit=-1)
    runs = {job.id: job.session for job in jobs if job.session is not None}
    return {job: id for job, id in runs.items() if id.startswith(f"resp_{thread}.")}


def _calls(wait: Json) -> list[str]:
    """Return the ids of the calls of a wait, also of those that wait for an approval."""
    return [id.removeprefix("mcpr_") for id in wait["calls"]]


def _asked_in(message: Message) -> str | None:
    """Return the response that a question is for; None for another message."""
    return message.content.get("response") if message.role == "user" else None
