"""Responses of several processes: any of them accepts a request, and any runs its turn.

All requests of a session are messages of its durable inbox, so the store keeps their order and
modes, and the limit over all processes. The process that runs a turn writes its events into a file;
the process that accepted the request, and every other process that is asked, reads them on. It
looks at the file as long as a client waits. What has to reach a running turn is a message of its
job, and is accepted when the turn has it.
"""

from __future__ import annotations

import json
import logging
import secrets
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from trio_lanes import JobCancelledError, LaneFullError
from trio_lanes.agents import (
    ActionGate,
    DurableInbox,
    DurableTurn,
    MemoryTranscript,
    Overflow,
    SettledKind,
    SharedTranscripts,
    TranscriptStore,
    WhenBusy,
    inbox_handler,
)
from trio_lanes.durable import (
    DurableJobError,
    JobExpiredError,
    JobTakenError,
    ResultGoneError,
    StoreError,
    StoreUnavailableError,
)

from ..gateway.asks import Ask, Elsewhere, Pending
from ..gateway.backlog import OPEN, ROOM_SECONDS, Backlog, answer_of
from ..gateway.engine import CAP, KEPT, TURNS, BusyError, Engine
from ..openai_api.errors import BadInputError, Refused
from ..openai_api.items import outputs_of
from ..openai_api.log import EventLog, Found
from ..openai_api.once import Key
from ..openai_api.wire import Answer, Json
from .places import Places
from .turns import LOOK_SECONDS, SharedReach, open_runs, too_late, wait_name

logger: Final = logging.getLogger(__name__)
LARGEST: Final = 1_000_000  # of the text that a conversation keeps of a request


class SharedBacklog(Backlog, Elsewhere):
    """The responses of all processes."""

    @staticmethod
    def transcripts(folder: Path) -> TranscriptStore:
        """Return what stands for the conversations until the store of the jobs is open."""
        return MemoryTranscript()

    def __init__(self, engine: Engine, folder: Path, is_durable: bool) -> None:
        super().__init__(engine, folder, is_durable)
        self._places: Final = Places(engine.lanes)
        self.handlers = {
            "respond": inbox_handler(self._run), self._places.handler: self._places.hold,
        }  # fmt: skip
        engine.begin, engine.elsewhere = self._places.begin, self
        self._followed: Final[dict[str, tuple[Answer, Found]]] = {}

    async def _submit_again(self, answer: Answer, found: Found) -> Answer | None:
        if found.job is None and found.request is not None:
            await self._give(Ask(answer, **found.request["ask"]), found.request)
        return self.find(answer.id)

    async def begin(self, ask: Ask, key: Key, background: bool = False) -> Answer:
        self._engine.processes = len(await self.durable.instances()) or 1
        if ask.messages and not key.given:  # this process answers its own client, in a place
            turns = (await self.durable.statistics()).lanes[TURNS]
            if turns.waiting + turns.parked >= turns.max_waiting:
                raise LaneFullError(TURNS, turns.max_waiting)
            self._engine.post(ask)
            return ask.answer
        self._engine.check_share(ask.user)
        self._engine.take_place(ask.user)
        try:
            answer = await self.accept(ask, key)
        except BaseException:
            self._engine.give_place_back(ask.user)
            raise
        self._engine.nursery.start_soon(self._wait_ended, answer, ask.user)
        return answer

    async def _wait_ended(self, answer: Answer, user: str | None) -> None:
        await answer.ended.wait()
        self._engine.give_place_back(user)

    async def accept(self, ask: Ask, key: Key) -> Answer:
        """Accept a request for any process; return its response, as this process sees it."""
        if len(json.dumps(ask.content)) > LARGEST:
            text = f"with several processes, an input has at most {LARGEST:,} characters of JSON"
            raise Refused(413, text)
        wait = next(filter(None, map(self._waiting, outputs_of(ask.items))), None)
        if ask.resumes and wait is None:
            raise too_late()
        more: Json = {
            "wait": wait,
            "succeeds": ask.answer.succeeds,
            "session": ask.answer.id if ask.alone else ask.answer.session,
            # a job that was withdrawn keeps its id
            "job": f"{ask.answer.id}~{secrets.token_hex(4)}",
        }
        log = await self._create(ask, key, **more)
        job = await self._give(ask, more)
        answer = self._follow(answer_of(log.read()))
        with suppress(StoreError):  # it is accepted
            queue = await self.durable.queue(more["session"], CAP + 2)
            answer.position = sum(other.id < job for other in queue) if wait is None else None
        return answer

    async def _give(self, ask: Ask, request: Json) -> int:
        """Give a request its place in its session, or to the turn that waits; return the job.

        A store that is away may have taken the request, so it is asked until it answers. Only that
        answer deletes the file, without which the request cannot be given again.
        """
        log = EventLog(self._folder, ask.answer.id)
        while True:
            try:
                if request["wait"] is None:
                    job = await self._post(ask, request)
                else:
                    job = await self._bring(ask, request["wait"])
                break
            except StoreUnavailableError as error:
                logger.warning("%s is not accepted yet: %s", ask.answer.id, error)
                await trio.sleep(ROOM_SECONDS)
            except (Refused, LaneFullError):
                log.delete()
                raise
        log.note(job)
        return job

    async def _post(self, ask: Ask, request: Json) -> int:
        inbox = DurableInbox(
            self.durable, request["session"], "respond", when_busy=WhenBusy.FOLLOWUP, lane=TURNS,
            cap=CAP, overflow=Overflow.DROP_NEWEST,
        )  # fmt: skip
        receipt = await inbox.post(
            ask.answer.id, when_busy=ask.mode, id=request["job"], group=ask.group
        )
        if receipt.job is not None:
            return receipt.job.id
        if (await receipt.settled()).kind is SettledKind.REJECTED:
            raise BusyError
        raise LaneFullError(f"session:{inbox.session}", CAP)

    async def _bring(self, ask: Ask, wait: Json) -> int:
        """Hand outputs to the turn that waits for them, in the process that runs it."""
        try:
            ActionGate(wait["calls"]).submit(outputs_of(ask.items))
        except ValueError as error:
            raise BadInputError(str(error)) from None
        job, id = int(wait["job"]), ask.answer.id
        while not await self.durable.send(job, {"outputs": id}, key=id):
            if (taken_by := EventLog(self._folder, id).read().job) is not None:
                return taken_by  # of a message whose answer was lost
            if await self.open_wait(wait["calls"][0]) is None:
                raise too_late()
            await trio.sleep(ROOM_SECONDS)  # its process has died; another takes the turn over
        return job

    def _waiting(self, name: str) -> Json | None:
        """Return what a turn waits for, of any process: a turn with this call, or session."""
        return EventLog(self._folder, wait_name(name)).read().request

    async def open_in(self, thread: str) -> list[Ask]:
        found = await open_runs(self.durable, thread)
        return [ask for ask in map(self.ask_of, found.values()) if ask is not None]

    async def open_wait(self, name: str) -> Pending | None:
        wait = self._waiting(name)
        try:
            state = wait and (await self.durable.job(wait["job"]).status()).state
        except ResultGoneError:
            return None
        # a turn that was cancelled leaves behind what it has waited for
        return self._pending(wait) if state in OPEN else None

    def _pending(self, wait: Json | None) -> Pending | None:
        if wait is None:
            return None
        stop = partial(self.durable.cancel, wait["job"])
        return Pending(wait["session"], ActionGate(wait["calls"]), wait["responses"], stop)

    async def recover(self) -> None:
        """The handler of the jobs does it, in any process."""
        self._places.durable = self.durable
        self._engine.store = SharedTranscripts(self.durable)
        self._engine.nursery.start_soon(self._places.sweep)

    async def _run(self, turn: DurableTurn) -> None:
        await SharedReach(turn, self._engine, self.durable, self._folder).run()

    def find(self, id: str) -> Answer | None:
        """Return a response of any process."""
        if id in self._followed:
            followed, found = self._followed[id]
            self._learn(followed, found)  # its client may have read more at another process
            return followed
        answer = super().find(id)
        return answer if answer is None or answer.ended.is_set() else self._follow(answer)

    # ---- the responses, wherever they are written

    def _follow(self, answer: Answer) -> Answer:
        """Have this response tell what its file tells, until it ends."""
        start_soon = self._engine.nursery.start_soon
        found = EventLog(self._folder, answer.id).read()
        answer.stop = lambda reason: start_soon(self._cancel, answer, found, reason)
        self._followed[answer.id] = answer, found
        start_soon(self._read_on, answer, found)
        return answer

    async def _read_on(self, answer: Answer, found: Found) -> None:
        ends: list[tuple[str, str | Json]] = []
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wait_job, answer, found, ends)
                while not answer.ended.is_set():
                    last_look = bool(ends)
                    self._learn(answer, found)
                    if last_look and not answer.ended.is_set():  # its job has ended without a word
                        EventLog(self._folder, answer.id).record(answer)
                        answer.end(*ends[0])
                    await trio.sleep(LOOK_SECONDS)
                nursery.cancel_scope.cancel()
        finally:
            del self._followed[answer.id]
            answer.suspend()  # if this process ends: nobody here waits for what it does not read
        known = self._engine.answers  # of which requests may refer to items
        known[answer.id] = answer
        while len(known) > KEPT:
            known.popitem(last=False)

    def leave(self) -> None:
        """Have nobody here wait for a response any more: this process ends, and others go on."""
        for answer, found in [*self._followed.values()]:
            self._learn(answer, found)
            answer.suspend()

    def _learn(self, answer: Answer, found: Found) -> None:
        """Take in the events that the file has and the response lacks."""
        for event in EventLog(self._folder, answer.id).read(found).events[answer.feed.last + 1 :]:
            answer.learn(event)

    async def _wait_job(
        self, answer: Answer, found: Found, ends: list[tuple[str, str | Json]]
    ) -> None:
        """Wait until the job of the turn has ended; add the end that the response then has."""
        while not ends:
            try:
                if found.job is not None:
                    await self.durable.job(found.job).wait()
                    is_late = answer.status == "queued" and (found.request or {}).get("wait")
                    why = "the process that ran the turn has ended"
                    ends.append(("failed", too_late().problem if is_late else why))
                else:
                    await trio.sleep(LOOK_SECONDS)
            except JobTakenError as taken:  # by a turn that answers this request, too
                found.job = taken.by
            except JobCancelledError:
                ends.append(("cancelled", ""))
            except StoreError as error:  # tried again
                logger.warning("the end of a response is not known yet: %s", error)
                await trio.sleep(ROOM_SECONDS)
            except (DurableJobError, JobExpiredError, ResultGoneError) as error:
                ends.append(("failed", str(error)))

    async def _cancel(self, answer: Answer, found: Found, reason: str) -> None:
        """Cancel the request while it waits, or else have its turn end the response."""
        message = {"cancel": answer.id, "reason": reason}
        while not answer.ended.is_set():
            try:
                if found.job is not None and (
                    await self.durable.cancel(found.job, reason, running=False)
                    or await self.durable.send(found.job, message, key=f"cancel {answer.id}")
                ):
                    return
            except StoreError as error:  # tried again
                logger.warning("%s is not cancelled yet: %s", answer.id, error)
                await trio.sleep(ROOM_SECONDS)
            await trio.sleep(LOOK_SECONDS)
