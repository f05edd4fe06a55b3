"""`/v1/threads`: several runs of a thread at once, with the order of questions and answers kept.

A posted message is in the conversation of its thread at once, for readers. A run asks the messages
that no other run asks, and reserves the place of its answer when it starts. Those of a run that
ends without an answer are left to the next run.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes import Job
from trio_lanes.agents import RunStatus

from ..openai_api.chat import run_object, thread_message, thread_messages
from ..openai_api.errors import BadInputError, Refused
from ..openai_api.fields import MESSAGES, RUNS, THREADS, checked
from ..openai_api.http import body_of, field, listed, named
from ..openai_api.items import exchange_of, numbered, text_of
from ..openai_api.once import Key
from ..openai_api.requests import chat_request
from ..openai_api.wire import Answer, Json, new_id
from .asks import Ask, Reach
from .conversations import stem_of, write
from .engine import TURNS, Engine

KEPT: Final = 1_000  # runs


@attrs.define(eq=False)
class Run:
    """A run: a job that answers the messages which it took."""

    thread: str
    ask: Ask
    id: str = attrs.field(factory=lambda: new_id("run"))
    job: Job[Any] = attrs.field(init=False)
    next_id: str = ""  # of its next response; "" for any

    @property
    def needs(self) -> list[Json]:
        """The calls that the client has to answer."""
        return [item for item in self.ask.answer.output if item["type"] == "function_call"]

    @property
    def status(self) -> RunStatus:
        answer = self.ask.answer
        if self.job.done:
            status = answer.status if answer.ended.is_set() else "cancelled"
            return RunStatus.EXPIRED if self.needs else RunStatus(status)
        if self.job.cancel_called:
            return RunStatus.CANCELLING
        if answer.ended.is_set():
            return RunStatus.REQUIRES_ACTION
        return RunStatus(answer.status)

    def object(self) -> Json:
        status = self.status
        needs = self.needs if status is RunStatus.REQUIRES_ACTION else []
        return run_object(self.id, self.thread, str(status), needs, self.ask.answer.error)


class Threads:
    """The endpoints, over the conversations and the tools of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._runs: Final[OrderedDict[str, Run]] = OrderedDict()

    async def create(self, request: Request) -> Response:
        """`POST /v1/threads`."""
        body = await body_of(request)
        checked(THREADS, body)
        id = f"thread_{stem_of(request)}"
        await self._post(request, id, body.get("messages") or [])
        return JSONResponse({"id": id, "object": "thread", "created_at": 0, "metadata": {}})

    async def post(self, request: Request) -> Response:
        """`POST /v1/threads/{id}/messages`."""
        id, body = named(request.path_params["id"]), await body_of(request)
        (item,) = await self._post(request, id, [body])
        text = text_of(item["content"])
        return JSONResponse(thread_message(id, item["id"], item["role"], text))

    async def messages(self, request: Request) -> Response:
        """`GET /v1/threads/{id}/messages`, newest first unless `order=asc`."""
        id = named(request.path_params["id"])
        return listed(request, thread_messages(id, await self._engine.messages(id)))

    async def run(self, request: Request) -> Response:
        """`POST /v1/threads/{id}/runs`."""
        id, body = named(request.path_params["id"]), await body_of(request)
        tools, settings = chat_request(RUNS, body)
        items = await self._unasked(id)
        if not items:
            raise BadInputError("no message was posted since the last run")
        ask = Ask(Answer.begun(id, "", {}), items, body.get("instructions") or "", tools)
        ask.settings = settings
        run = await self._begin(ask, request.scope.get("once"))
        return JSONResponse(run.object())

    async def _begin(self, ask: Ask, key: Key | None) -> Run:
        """Begin a run; this process knows its key."""
        run = Run(ask.answer.session, ask)
        run.job = self._engine.lanes.submit_nowait(self._answer, run, lane=TURNS, owner=run.thread)
        self._runs[run.id] = run
        for old in [*self._runs.values()][:-KEPT]:
            if old.job.done:
                del self._runs[old.id]
        return run

    async def _answer(self, run: Run) -> None:
        await self._engine.answer(run.thread, [run.ask], Reach(run.job.cancel))

    async def retrieve(self, request: Request) -> Response:
        """`GET /v1/threads/{id}/runs/{run}`."""
        return JSONResponse((await self._run(request)).object())

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/threads/{id}/runs/{run}/cancel`."""
        run = await self._run(request)
        await self._stop(run)
        return JSONResponse(run.object())

    async def submit(self, request: Request) -> Response:
        """`POST /v1/threads/{id}/runs/{run}/submit_tool_outputs`: of all calls, or of none."""
        run, body = await self._run(request), await body_of(request)
        outputs = [o for o in field(body, "tool_outputs", list, []) if isinstance(o, dict)]
        items = [{"type": "function_call_output", "call_id": str(o.get("tool_call_id")),
                  "output": o.get("output")} for o in outputs]  # fmt: skip
        answer = Answer.begun(run.thread, "", {}, run.next_id)
        ask = attrs.evolve(run.ask, answer=answer, items=items)
        if run.status is not RunStatus.REQUIRES_ACTION or not await self._bring(ask):
            raise BadInputError("the run does not wait for these outputs")
        run.ask = ask
        return JSONResponse(run.object())

    async def _open(self, thread: str) -> list[Ask]:
        """Return what the runs of a thread ask that have not ended."""
        runs = self._runs.values()
        return [run.ask for run in runs if run.thread == thread and not run.job.done]

    async def _stop(self, run: Run) -> None:
        """Cancel a run."""
        run.job.cancel("cancelled by the client")

    async def _bring(self, ask: Ask) -> bool:
        """Bring outputs to a run; False if it does not wait for them."""
        return self._engine.resume(ask)

    async def _post(self, request: Request, id: str, messages: list[Any]) -> list[Json]:
        items = []
        for message in messages:
            if not isinstance(message, dict):
                raise BadInputError("a message is an object", "messages")
            checked(MESSAGES, message)
            items.append({"role": "user", "content": text_of(message.get("content"))})
        if not items:
            return []
        posted = numbered(items, stem_of(request))
        return list((await write(self._engine, request, id, posted=posted))["posted"])

    async def _unasked(self, id: str) -> list[Json]:
        """Return the posted messages that no run asks, and that have no answer."""
        asks = await self._open(id)
        messages = await self._engine.messages(id)
        asks += await self._open(id)  # also of a run that has begun meanwhile, or has ended
        answered = {
            exchange_of(message)
            for message in messages
            if message.role == "assistant"
            and (message.content or message.tool_calls or message.status == "in_progress")
        }
        asked = {item["id"] for ask in asks for item in ask.items if "id" in item}
        kept = [message for message in messages if message.role == "user"]
        for message in kept:
            if exchange_of(message) in answered:
                asked |= {item.get("id") for item in message.content["input"]}
        posted = [item for message in kept for item in message.content.get("posted", ())]
        return [item for item in posted if item["id"] not in asked]

    async def _run(self, request: Request) -> Run:
        run = await self._find(request.path_params["run"])
        if run is None or run.thread != request.path_params["id"]:
            raise Refused(404, "there is no such run")
        return run

    async def _find(self, id: str) -> Run | None:
        return self._runs.get(id)
