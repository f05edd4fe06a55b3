"""Responses of several processes: any of them accepts a request, and any runs its turn.

All requests of a session are durable jobs of that session, so the store keeps their order, and the
limit over all processes. The process that runs a turn writes its events into a file; the process
that accepted the request, and every other process that is asked, reads them on. It looks at the
file as long as a client waits. A turn that waits for its client belongs to its process, and cannot
be reached from another: such a request is refused.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Final

import trio

from trio_lanes import JobCancelledError, LaneError
from trio_lanes.agents import WhenBusy
from trio_lanes.durable import Retry, StoreError, current_job

from ..gateway.asks import Ask
from ..gateway.backlog import ROOM_SECONDS, Backlog
from ..gateway.engine import TURNS
from ..openai_api.http import Refused
from ..openai_api.log import EventLog, Found
from ..openai_api.once import Key
from ..openai_api.wire import Answer

logger: Final = logging.getLogger(__name__)
LARGEST: Final = 1_000_000  # of the text that a conversation keeps of a request
LOOK_SECONDS: Final = 0.05  # between two looks at a file
TAGGED: Final = re.compile(r"call(_[0-9a-f]{6})_\w+")
ELSEWHERE: Final = "the turn that waits for these outputs runs in another process of this gateway"


class SharedBacklog(Backlog):
    """The responses of all processes."""

    takes_all = True
    lane = TURNS  # its limit holds over all processes

    async def accept(
        self, ask: Ask, mode: WhenBusy | None, group: str | None, key: Key | None = None
    ) -> Answer:
        """Accept a request for any process; return its response, as this process sees it.

        Raises:
          Refused: if the request has to reach a turn that may run in another process.
        """
        answer, engine = ask.answer, self._engine
        if mode not in (None, WhenBusy.FOLLOWUP):
            text = f"metadata.when_busy={mode} needs a gateway of one process"
            raise Refused(400, text, "needs_one_process")
        if len(json.dumps(ask.content)) > LARGEST:
            text = f"with several processes, an input has at most {LARGEST:,} characters of JSON"
            raise Refused(413, text)
        calls = [TAGGED.fullmatch(str(item.get("call_id"))) for item in ask.items]
        if any(call[1] != engine.tag for call in calls if call is not None):
            raise Refused(409, ELSEWHERE, "other_process", x_should_retry="false")
        pending = engine.pending_of(ask.items)
        root = answer.id if pending is None else pending.responses[0]
        log = await self._create(ask, group, key, root=root)
        try:
            if pending is None:
                log.note((await self._submit(answer)).id)
            elif engine.resume(ask):
                engine.answers[answer.id] = answer
                return answer
            else:
                raise Refused(409, "the turn does not wait for these outputs any more", "too_late")
        except BaseException:
            log.delete()
            raise
        followed = Answer.again(log.read().events)
        followed.input = ask.items
        return self._follow(followed)

    async def _go_on(self, id: str) -> Answer:
        answer = self.find(id)
        assert answer is not None
        return answer

    async def recover(self) -> None:
        """The handler of the jobs does it, in any process."""

    async def respond(self, id: str) -> None:
        """Run the turn of a response to its end: the handler of the jobs."""
        run = current_job()
        assert run is not None
        EventLog(self._folder, id).note(run.id)
        try:
            answer, receipt = await self._begin_again(id)
        except LaneError:  # there is no room for its turn
            raise Retry(ROOM_SECONDS, counts=False) from None
        try:
            if receipt is not None:
                await receipt.settled()
        except trio.Cancelled:  # another process goes on, or the process that cancels ends it
            answer.suspend()
            with trio.CancelScope(shield=True):
                await self._engine.inboxes.abort(answer.session, "the job was taken back")
            raise

    def find(self, id: str) -> Answer | None:
        """Return a response of any process."""
        if id in self._followed:
            followed, found = self._followed[id]
            self._learn(followed, found)  # its client may have read more at another process
            return followed
        answer = super().find(id)
        return answer if answer is None or answer.ended.is_set() else self._follow(answer)

    # ---- the responses of other processes

    def _follow(self, answer: Answer) -> Answer:
        """Have this response tell what its file tells, until it ends."""
        start_soon = self._engine.nursery.start_soon
        answer.stop = lambda reason: start_soon(self._cancel, answer, reason)
        self._followed[answer.id] = answer, Found()
        start_soon(self._read_on, answer)
        return answer

    async def _read_on(self, answer: Answer) -> None:
        _, found = self._followed[answer.id]
        ends: list[tuple[str, str]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_job, answer, ends)
            while not answer.ended.is_set():
                last_look = bool(ends)
                self._learn(answer, found)
                if last_look and not answer.ended.is_set():  # its job has ended without a word
                    EventLog(self._folder, answer.id).record(answer)
                    answer.end(*ends[0])
                await trio.sleep(LOOK_SECONDS)
            nursery.cancel_scope.cancel()
        del self._followed[answer.id]

    def _learn(self, answer: Answer, found: Found) -> None:
        """Take in the events that the file has and the response lacks."""
        for event in EventLog(self._folder, answer.id).read(found).events[answer.feed.last + 1 :]:
            answer.learn(event)

    async def _wait_job(self, answer: Answer, ends: list[tuple[str, str]]) -> None:
        """Wait until the job of the turn has ended; add the end that the response then has."""
        while True:
            try:
                job = self._job(answer)
                if job is not None:
                    await self.durable.job(job).wait()
                    ends.append(("failed", "the process that ran the turn has ended"))
                    return
            except JobCancelledError:
                ends.append(("cancelled", ""))
                return
            except StoreError as error:  # tried again
                logger.warning("the end of %s is not known yet: %s", answer.id, error)
            except LaneError as error:
                ends.append(("failed", str(error)))
                return
            await trio.sleep(ROOM_SECONDS)

    async def _cancel(self, answer: Answer, reason: str) -> None:
        job = self._job(answer)
        try:
            if job is not None:
                await self.durable.cancel(job, reason)
        except StoreError as error:
            logger.error("%s could not be cancelled: %s", answer.id, error)

    def _job(self, answer: Answer) -> int | None:
        """Return the number of the job that runs the turn of the response."""
        request = EventLog(self._folder, answer.id).read().request or {}
        return EventLog(self._folder, request.get("root", answer.id)).read().job
