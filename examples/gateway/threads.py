"""`/v1/threads`: several runs of a thread at once, with the order of questions and answers kept.

A posted message is in the conversation of its thread at once, for readers. A run asks the messages
that no other run asks, and reserves the place of its answer when it starts. Those of a run that
ends without an answer are left to the next run.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.agents import RunStatus

from ..chat_agent.upstream import model_name
from ..openai_api.chat import run_object, thread_message, thread_messages
from ..openai_api.errors import BadInputError, Refused
from ..openai_api.fields import MESSAGES, RUNS, THREADS, checked
from ..openai_api.http import RESPONSE, body_of, field, listed, named
from ..openai_api.items import asked_in, exchange_of, numbered, text_of
from ..openai_api.once import Key, key_of
from ..openai_api.requests import chat_request
from ..openai_api.wire import Answer, Json
from .asks import Ask, Pending
from .backlog import Backlog
from .conversations import write
from .engine import Engine
from .responses import check_here


@attrs.define
class Run:
    """A run as it is now: responses, each of which begins with outputs of the one before."""

    id: str
    ask: Ask  # of its last response
    next_id: str  # of its next response
    answers: list[Answer]  # of all its responses
    waits: Pending | None = None  # for outputs of its last response

    @property
    def needs(self) -> list[Json]:
        """The calls that the client has to answer, or had to."""
        return [item for item in self.ask.answer.output if item["type"] == "function_call"]

    @property
    def status(self) -> RunStatus:
        if self.ask.answer.status == "completed" and self.needs:
            return RunStatus.REQUIRES_ACTION if self.waits else RunStatus.EXPIRED
        return RunStatus(self.ask.answer.status)

    def object(self) -> Json:
        needs, ask = self.needs if self.waits else [], self.ask
        asked = {"instructions": ask.instructions, "tools": ask.tools}
        names = ("temperature", "top_p", "max_completion_tokens", "parallel_tool_calls")
        asked |= {name: ask.settings[name] for name in names if name in ask.settings}
        return run_object(self.id, str(self.status), needs, self.answers, **asked)


class Threads:
    """The endpoints. A run is a response beside the others of its conversation."""

    def __init__(self, engine: Engine, backlog: Backlog) -> None:
        self._engine: Final = engine
        self._backlog: Final = backlog

    async def create(self, request: Request) -> Response:
        """`POST /v1/threads`."""
        body = await body_of(request)
        checked(THREADS, body)
        id = f"thread_{key_of(request).id}"
        if messages := body.get("messages"):
            await self._post(request, id, messages)
        return JSONResponse({"id": id, "object": "thread", "created_at": 0, "metadata": {}})

    async def post(self, request: Request) -> Response:
        """`POST /v1/threads/{id}/messages`."""
        id, body = named(request.path_params["id"]), await body_of(request)
        (item,) = await self._post(request, id, [body])
        return JSONResponse(thread_message(id, item))

    async def messages(self, request: Request) -> Response:
        """`GET /v1/threads/{id}/messages`, newest first unless `order=asc`."""
        id = named(request.path_params["id"])
        return listed(request, thread_messages(id, await self._engine.messages(id)))

    async def run(self, request: Request) -> Response:
        """`POST /v1/threads/{id}/runs`."""
        id, body = named(request.path_params["id"]), await body_of(request)
        key = key_of(request)
        async with self._engine.store.locks.exclusive(f"runs of {id}"):  # none asks what one asks
            answer = await self._backlog.once(key.id, key, partial(self._begin, id, body, key))
        return JSONResponse((await self._run(id, _named_as(answer.id, "run"))).object())

    async def _begin(self, thread: str, body: Json, key: Key) -> Answer:
        tools, settings = chat_request(RUNS, body)
        items = await self._unasked(thread)
        if not items:
            raise BadInputError("no message was posted since the last run")
        name = model_name(self._engine.upstream, settings)
        answer = Answer.begun(thread, name, {}, f"resp_{thread}.{key.id}")
        ask = Ask(answer, items, body.get("instructions") or "", tools, alone=True)
        ask.settings, ask.user = settings, thread
        return await self._backlog.accept(ask, key)

    async def retrieve(self, request: Request) -> Response:
        """`GET /v1/threads/{id}/runs/{run}`."""
        return JSONResponse((await self._run_of(request)).object())

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/threads/{id}/runs/{run}/cancel`: returns when no process runs it again."""
        reason = "cancelled by the client"
        while not (run := await self._run_of(request)).ask.answer.ended.is_set():
            run.ask.answer.cancel(reason)
            await run.ask.answer.ended.wait()
            check_here(run.ask.answer)
        if run.waits is not None:
            await run.waits.stop(reason)
            run = await self._run_of(request)
        shown = run.object()
        if run.waits is not None:
            shown |= {"status": RunStatus.CANCELLING, "required_action": None}
        return JSONResponse(shown)

    async def submit(self, request: Request) -> Response:
        """`POST /v1/threads/{id}/runs/{run}/submit_tool_outputs`: of all calls, or of none."""
        run, body = await self._run_of(request), await body_of(request)
        key = key_of(request)
        if run.ask.key == key.id:
            return JSONResponse(run.object())
        outputs = [o for o in field(body, "tool_outputs", list, []) if isinstance(o, dict)]
        items = [{"type": "function_call_output", "call_id": str(o.get("tool_call_id")),
                  "output": text_of(o.get("output"))} for o in outputs]  # fmt: skip
        name = run.ask.answer.object()["model"]
        answer = Answer.begun(run.ask.answer.session, name, {}, run.next_id)
        ask = attrs.evolve(run.ask, answer=answer, items=items, resumes=True, key=key.id)
        try:
            if run.waits is None:
                raise FileExistsError
            await self._backlog.accept(ask, key)
        except FileExistsError:  # another request was faster
            raise BadInputError("the run does not wait for these outputs") from None
        return JSONResponse((await self._run_of(request)).object())

    async def _post(self, request: Request, id: str, messages: list[Any]) -> list[Json]:
        items = []
        for message in messages:
            if not isinstance(message, dict):
                raise BadInputError("a message is an object", "messages")
            checked(MESSAGES, message)
            items.append({"role": "user", "content": text_of(message.get("content"))})
        posted = numbered(items, key_of(request).id)
        return list((await write(self._engine, request, id, posted=posted))["posted"])

    async def _unasked(self, id: str) -> list[Json]:
        """Return the posted messages that no run asks, and that have no answer."""
        asks = await self._backlog.open_in(id)
        messages = await self._engine.messages(id)
        answered = {
            exchange_of(message)
            for message in messages
            if message.role == "assistant"
            and (message.content or message.tool_calls or message.status == "in_progress")
        }
        asked = [item for ask in asks for item in ask.items]
        for content in asked_in([one for one in messages if exchange_of(one) in answered]):
            asked += content["input"]
        ids = {item.get("id") for item in asked}
        posted = [item for content in asked_in(messages) for item in content.get("posted", ())]
        return [item for item in posted if item["id"] not in ids]

    async def _run_of(self, request: Request) -> Run:
        return await self._run(request.path_params["id"], request.path_params["run"])

    async def _run(self, thread: str, id: str) -> Run:
        """Return a run; the ids of its responses follow from its own."""
        first, answers = _named_as(id, "resp"), list[Answer]()
        last, next_id = None, first
        if not RESPONSE.fullmatch(first):
            raise Refused(404, "there is no such run")
        while (ask := self._backlog.ask_of(next_id)) is not None:
            answers.append(ask.answer)
            last, next_id = ask, f"{first}_{len(answers)}"
        if last is None or last.answer.session != thread:
            raise Refused(404, "there is no such run")
        run = Run(id, last, next_id, answers)
        if last.answer.status == "completed" and run.needs:
            run.waits = await self._backlog.open_wait(run.needs[0]["call_id"])
        return run


def _named_as(id: str, kind: str) -> str:
    """Return the id of a run as that of its first response, or the reverse."""
    return f"{kind}_{id.partition('_')[2]}"
