"""Responses that outlive the process: each is a durable job and a file with its events.

A request is accepted when the request is in its file and the job in the store. A process that dies
leaves both. The next process finds the job, begins its answer again, and adds to the same events,
so a client reads on after the last number that it has.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from trio_lanes import LaneError, LanesClosedError
from trio_lanes.agents import JsonlTranscript, TranscriptStore
from trio_lanes.durable import DurableJob, DurableLanes, DurableState, NoRetry, Retry

from ..openai_api.errors import BadInputError
from ..openai_api.log import EventLog, Found
from ..openai_api.once import Key
from ..openai_api.wire import Answer
from .asks import Ask, Pending
from .engine import Engine

logger: Final = logging.getLogger(__name__)
COMPLETION: Final = "chat"  # the prefix of the files of completions
LANE: Final = "responses"  # its jobs wait for turns, which the lanes of the engine limit
ROOM_SECONDS: Final = 1.0  # before a job looks for room again
WITHDRAW_SECONDS: Final = 5.0
Handlers = dict[str, Callable[[Any], Awaitable[Any]]]
OPEN: Final = (DurableState.WAITING, DurableState.PARKED, DurableState.RUNNING)


class Backlog:
    """The responses that outlive the process. The handler of their jobs is `respond`.

    Attributes:
      is_durable: whether there are such: otherwise its folder goes with the process.
    """

    transcripts: Callable[[Path], TranscriptStore] = JsonlTranscript  # conversations in a folder

    def __init__(self, engine: Engine, folder: Path, is_durable: bool) -> None:
        self.durable: DurableLanes  # set when it is open, before the first request
        self.is_durable: Final = is_durable
        self.handlers: Handlers = {"respond": self.respond}  # of its jobs
        self._engine: Final = engine
        self._folder: Final = folder
        self._beginning: Final = trio.Lock()
        self._keeping: Final[set[str]] = set()  # responses that are kept when they end
        self._roomless: Final[dict[str, Answer]] = {}  # of dead processes; there was no room yet

    async def once(self, stem: str, key: Key, begin: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the response to the request with a key; begin it if this is the first.

        Args:
          stem: what the response has in its ids.
        """
        answer = await self._again(stem, key)
        while answer is None:
            try:
                answer = await begin()
            except FileExistsError:  # another process has begun it meanwhile
                answer = await self._again(stem, key)
        key.begun = True
        return answer

    async def _again(self, stem: str, key: Key) -> Answer | None:
        """Return the response to an earlier request with this key, if there is one.

        Raises:
          Refused: if that request asked for something else.
        """
        found = EventLog(self._folder, stem).read()
        if found.request is None:
            return None
        key.check(found.request["body"])
        answer = answer_of(found)
        return answer if answer.ended.is_set() else await self._submit_again(answer, found)

    async def _submit_again(self, answer: Answer, found: Found) -> Answer | None:
        """Submit the job: the process that accepted the request may have died before it did."""
        assert found.request is not None
        await self._submit(answer, found.request["job"])
        return await self._go_on(answer.id)

    async def begin(self, ask: Ask, key: Key, background: bool = False) -> Answer:
        """Give a request its place; raise as `accept`."""
        if self.is_durable and (background or key.given):
            return await self.accept(ask, key)
        self._engine.post(ask)
        if ask.answer.is_stored:
            self.keep(ask.answer)
        return ask.answer

    async def accept(self, ask: Ask, key: Key) -> Answer:
        """Accept a request, and give it its place; raise as `Engine.post`, having kept nothing.

        Raises:
          FileExistsError: if another process has accepted a request with this key meanwhile.
        """
        answer = ask.answer
        # a job that was cancelled, since there was no room, keeps its key
        job_key = f"{answer.id}~{secrets.token_hex(4)}"
        log = await self._create(ask, key, job=job_key)
        self._engine.answers[answer.id] = answer  # the job may run before its turn has a place
        job = None
        try:
            if self.is_durable:
                job = await self._submit(answer, job_key)
            self._engine.post(ask)
        except BaseException:
            log.delete()
            self._engine.answers.pop(answer.id, None)
            answer.suspend()
            with trio.move_on_after(WITHDRAW_SECONDS, shield=True):
                if job is not None:  # without its file, the job does nothing
                    await self.durable.cancel(job.id, "the request was refused")
            raise
        return answer

    async def _submit(self, answer: Answer, key: str) -> DurableJob:
        """Submit the job of a response, once with each key."""
        id, session = answer.id, answer.session
        return await self.durable.submit("respond", id, session=session, lane=LANE, key=key)

    def forget_older(self, age: float) -> None:
        """Delete the completions that are older than ``age`` seconds: clients cannot."""
        for path in self._folder.glob(f"{COMPLETION}*"):
            if time.time() - path.stat().st_mtime > age:
                path.unlink(missing_ok=True)

    async def recover(self) -> None:
        """Give the responses of earlier processes their places, in the order of their jobs."""
        for job in await self.durable.jobs(LANE, states=OPEN, limit=-1):
            try:
                await self._go_on((job.key or "").partition("~")[0])
            except (LaneError, NoRetry):
                pass  # the handler of the job tries again, or tells why it cannot

    async def respond(self, id: str) -> None:
        """Wait until a response has ended: the handler of the jobs."""
        try:
            answer = await self._go_on(id)
        except LaneError:  # there is no room for its turn
            raise Retry(ROOM_SECONDS, counts=False) from None
        await answer.ended.wait()
        if answer.is_suspended:  # the next process goes on with it, so its job does not end
            raise Retry(ROOM_SECONDS, counts=False)

    # ---- runs of threads

    def ask_of(self, id: str) -> Ask | None:
        """Return a request that was accepted, with its response."""
        request, answer = EventLog(self._folder, id).read().request, self.find(id)
        return None if request is None or answer is None else Ask(answer, **request["ask"])

    async def open_in(self, thread: str) -> list[Ask]:
        """Return what the runs of a thread ask that have not ended."""
        answers = [*self._engine.answers.values(), *self._roomless.values()]
        ids = [a.id for a in answers if a.session == thread and not a.ended.is_set()]
        return [ask for ask in map(self.ask_of, ids) if ask is not None]

    async def open_wait(self, name: str) -> Pending | None:
        """Return what a turn waits for: the turn with this call."""
        return self._engine.pending.get(name)

    # ---- responses, wherever they are

    def find(self, id: str) -> Answer | None:
        """Return a response: from memory, or from its file."""
        answer = self._engine.answers.get(id) or self._roomless.get(id)
        if answer is not None and not answer.is_suspended:
            return answer
        found = EventLog(self._folder, id).read()
        answer = answer_of(found) if found.events else None
        return answer if answer is not None and answer.id == id else None

    def keep(self, answer: Answer) -> None:
        """Keep a response that ends with this process, for readers after its end."""
        self._keeping.add(answer.id)
        self._engine.nursery.start_soon(self._keep, answer)

    async def _keep(self, answer: Answer) -> None:
        await answer.ended.wait()
        if answer.id in self._keeping:  # it was not deleted
            self._keeping.remove(answer.id)
            first, *_, last = answer.feed.since(-1)
            request = {"ask": {"items": answer.input}}
            try:
                log = EventLog(self._folder, answer.id)
                log.create(request, [first, last | {"sequence_number": 1}], sync=False)
            except OSError as error:  # for example a full disk
                logger.error("%s is known as long as it is in memory: %s", answer.id, error)

    def forget(self, id: str) -> None:
        """Delete what is kept of a response."""
        self._engine.answers.pop(id, None)
        self._keeping.discard(id)
        self._roomless.pop(id, None)
        EventLog(self._folder, id).delete()

    async def _create(self, ask: Ask, key: Key, **more: object) -> EventLog:
        """Write a request to the disk, and begin to record its response."""
        log = EventLog(self._folder, ask.answer.id)
        fields = attrs.asdict(ask, recurse=False, filter=lambda field, _: field.name != "answer")
        request = {"ask": fields, "body": key.body, **more}
        await trio.to_thread.run_sync(log.create, request, ask.answer.feed.since(-1))
        log.record(ask.answer)
        ask.answer.is_closing = self._is_closing
        return log

    async def _go_on(self, id: str) -> Answer:
        """Return a response of this process, or begin the answer of a dead process again."""
        async with self._beginning:
            return self._engine.answers.get(id) or await self._begin_again(id)

    async def _begin_again(self, id: str) -> Answer:
        """Begin the answer of a dead process again."""
        log = EventLog(self._folder, id)
        found = log.read()
        if found.request is None or not found.events:
            raise NoRetry(f"{id} was not accepted")
        answer = self._roomless.pop(id, None) or answer_of(found)
        if answer.ended.is_set():
            return answer
        if answer.record is None:
            log.record(answer)
            answer.is_closing = self._is_closing
            answer.start_over()
        said = await self._engine.said(id)
        if said is not None:  # the process died when all was said
            answer.text(said)
            answer.end("completed")
            return answer
        ask = Ask(answer, **found.request["ask"] | {"mode": None})
        try:
            await self._engine.check_outputs(ask, is_new=False)
            self._engine.post(ask)
        except BadInputError as bad:  # the turn that waited for its outputs has died
            answer.end("failed", bad.problem)
        except LaneError:  # clients read it, and cancel it, while it waits for room
            self._roomless[id] = answer
            answer.stop = lambda reason: answer.end("cancelled")
            raise
        return answer

    def _is_closing(self) -> bool:
        try:
            self._engine.lanes.check_open()
        except LanesClosedError:
            return True
        return False


def answer_of(found: Found) -> Answer:
    """Return the response of a file."""
    answer = Answer.again(found.events)
    answer.input = found.request["ask"]["items"] if found.request else []
    return answer
