"""Threads of several processes: a run is a response with a session of its own.

So several runs of a thread go on at once, in any process. A run begins behind those that were
created before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.agents import RunStatus

from ..gateway.asks import Ask
from ..gateway.engine import Engine
from ..gateway.threads import Run, Threads
from ..openai_api.http import named
from ..openai_api.log import KnownError
from ..openai_api.once import Key
from ..openai_api.wire import Answer, Json
from .turns import open_runs

if TYPE_CHECKING:
    from .shared import SharedBacklog


@attrs.define(eq=False)
class SharedRun(Run):
    """A run that any process does, as it is now."""

    wait: Json | None = None  # what it waits for

    @property
    def status(self) -> RunStatus:
        answer = self.ask.answer
        if answer.status == "completed" and self.needs:
            return RunStatus.REQUIRES_ACTION if self.wait else RunStatus.EXPIRED
        return RunStatus(answer.status)


class SharedThreads(Threads):
    """The endpoints of one of the processes."""

    def __init__(self, engine: Engine, backlog: SharedBacklog) -> None:
        super().__init__(engine)
        self._backlog: Final = backlog

    async def run(self, request: Request) -> Response:
        # two processes do not ask the same messages
        locks = self._engine.store.locks
        key: Key | None = request.scope.get("once")
        async with locks.exclusive(f"runs of {named(request.path_params['id'])}"):
            known = None if key is None else await self._backlog.again(key.id, key)
            if known is not None and (run := await self._find(_run_id(known))):
                return JSONResponse(run.object())
            return await super().run(request)

    async def _begin(self, ask: Ask, key: Key | None) -> Run:
        if key is not None:
            id = f"resp_{ask.answer.session}.{key.id}"
            ask.answer = Answer.begun(ask.answer.session, "", {}, id)
        answer = await self._backlog.accept(ask, None, None, key, alone=True)
        return SharedRun(answer.session, attrs.evolve(ask, answer=answer), _run_id(answer))

    async def _open(self, thread: str) -> list[Ask]:
        found = await open_runs(self._backlog.durable, thread)
        return [ask for ask in map(self._backlog.ask_of, found.values()) if ask is not None]

    async def _stop(self, run: Run) -> None:
        if isinstance(run, SharedRun) and run.wait is not None:
            await self._backlog.durable.cancel(run.wait["job"], "cancelled by the client")
        else:
            run.ask.answer.cancel("cancelled by the client")

    async def _bring(self, ask: Ask) -> bool:
        try:
            ask.answer = await self._backlog.accept(ask, None, None)
        except KnownError:  # another request was faster
            return False
        return True

    async def _find(self, id: str) -> Run | None:
        first, count = named(id).replace("run", "resp", 1), 0
        run = None
        next_id = first
        while (ask := self._backlog.ask_of(next_id)) is not None:
            count += 1
            next_id = f"{first}_{count}"
            run = SharedRun(ask.answer.session, ask, id, next_id)
        if run is not None and run.needs:
            run.wait = await self._backlog.open_wait(run.needs[0]["call_id"])
        return run


def _run_id(answer: Answer) -> str:
    return answer.id.replace("resp", "run", 1)
