"""Responses that outlive the process: each is a durable job and a file with its events.

A request is accepted when the request is in its file and the job in the store. A process that dies
leaves both. The next process finds the job, begins its answer again, and adds to the same events,
so a client reads on after the last number that it has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import trio

from trio_lanes import LaneError, LanesClosedError
from trio_lanes.agents import WhenBusy
from trio_lanes.durable import DurableLanes, DurableState, NoRetry, Retry

from ..openai_api.log import EventLog
from ..openai_api.wire import Answer
from .asks import Ask
from .engine import Engine

LANE: Final = "responses"  # its jobs wait for turns, which the lanes of the engine limit
ROOM_SECONDS: Final = 1.0  # before a job looks for room again
WITHDRAW_SECONDS: Final = 5.0
OPEN: Final = (DurableState.WAITING, DurableState.PARKED, DurableState.RUNNING)


class Backlog:
    """The responses that outlive the process. The handler of their jobs is `respond`."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.durable: DurableLanes  # set when it is open, before the first request
        self._engine: Final = engine
        self._folder: Final = folder
        self._beginning: Final = trio.Lock()

    async def accept(self, ask: Ask, mode: WhenBusy | None, group: str | None) -> None:
        """Accept a request, and give it its place; raise as `Engine.post`, having kept nothing."""
        answer, log = ask.answer, self._log(ask.answer.id)
        fields = attrs.asdict(ask, recurse=False, filter=lambda field, _: field.name != "answer")
        await trio.to_thread.run_sync(log.create, fields | {"group": group})
        self._record(answer, log)
        self._engine.answers[answer.id] = answer  # the job may run before its turn has a place
        job = None
        try:
            job = await self.durable.submit(
                "respond", answer.id, session=answer.session, lane=LANE, key=answer.id
            )
            self._engine.post(ask, mode, group)
        except BaseException:
            log.delete()
            self._engine.answers.pop(answer.id, None)
            answer.suspend()
            with trio.move_on_after(WITHDRAW_SECONDS, shield=True):
                if job is not None:  # without its file, the job does nothing
                    await self.durable.cancel(job.id, "the request was refused")
            raise

    async def recover(self) -> None:
        """Give the responses of earlier processes their places, in the order of their jobs."""
        after = 0
        while found := await self.durable.jobs(LANE, states=OPEN, after=after):
            for status in found:
                try:
                    await self._go_on(status.key or "")
                except (LaneError, NoRetry):
                    pass  # the handler of the job tries again, or tells why it cannot
            after = found[-1].id

    async def respond(self, id: str) -> None:
        """Wait until a response has ended: the handler of the jobs."""
        try:
            answer = await self._go_on(id)
        except LaneError:  # there is no room for its turn
            raise Retry(ROOM_SECONDS, counts=False) from None
        await answer.ended.wait()

    def find(self, id: str) -> Answer | None:
        """Return a response that has ended and is not in memory any more."""
        events = self._log(id).read().events
        return Answer.again(events) if events else None

    async def _go_on(self, id: str) -> Answer:
        """Return a response of this process, or begin the answer of a dead process again."""
        async with self._beginning:
            if id in self._engine.answers:
                return self._engine.answers[id]
            log = self._log(id)
            found = log.read()
            if found.request is None or not found.events:
                raise NoRetry(f"{id} was not accepted")
            answer = Answer.again(found.events)
            if answer.ended.is_set():
                return answer
            self._record(answer, log)
            answer.start_over()
            said = await self._engine.said(id)
            if said is not None:  # the process died when all was said
                answer.text(said)
                answer.end("completed")
                return answer
            group = found.request.pop("group")
            self._engine.post(Ask(answer, **found.request), WhenBusy.FOLLOWUP, group)
            return answer

    def _record(self, answer: Answer, log: EventLog) -> None:
        found, answer.record = log.begin()
        for event in answer.feed.since(len(found.events) - 1):
            answer.record(event)
        answer.is_closing = self._is_closing

    def _is_closing(self) -> bool:
        try:
            self._engine.lanes.check_open()
        except LanesClosedError:
            return True
        return False

    def _log(self, id: str) -> EventLog:
        return EventLog(self._folder, id)
