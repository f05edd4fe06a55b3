"""`POST /hooks/slack`, `/telegram`, `/discord`: messages of chats, answered once and in order.

A delivery is checked, accepted as a durable job with the id of its event as key, and acknowledged.
The jobs of a thread run one by one; each is a turn like any other, and sends its answer.

Sending cannot be undone, and a process may die between sending and remembering it. So the intent to
send is a checkpoint. A later run that finds it repeats a reply that replaces itself (Discord), and
never another: that job fails, and a person decides.
"""

from __future__ import annotations

import os
from typing import Final

import httpx2
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes import Lanes
from trio_lanes.durable import DurableLanes, NoRetry, current_job

from ..deliveries import CHECKS, READERS
from ..openai_api.http import Refused, json_of, raw_of
from ..openai_api.wire import Answer, Json
from .asks import Ask
from .engine import TURNS, Engine

APIS: Final = {
    "slack": "https://slack.com/api",
    "telegram": "https://api.telegram.org",
    "discord": "https://discord.com/api/v10",
}


class Hooks:
    """The endpoints, and the handler of their jobs. Secrets come from the environment."""

    def __init__(self, engine: Engine, client: httpx2.AsyncClient) -> None:
        self.durable: DurableLanes  # set when it is open, before the first request
        self._engine: Final = engine
        self._client: Final = client

    async def receive(self, request: Request) -> Response:
        """Check a delivery, accept its message, and acknowledge it."""
        raw = await raw_of(request)  # also if it is refused, so that the connection goes on
        chat = request.path_params["chat"]
        secret = os.environ.get(f"{chat.upper()}_SECRET", "")
        if chat not in CHECKS or not secret:
            raise Refused(404, "there is no such hook, or its secret is not set")
        if not CHECKS[chat](secret, request.headers, raw):
            raise Refused(401, "the signature is not valid")
        body = json_of(raw)
        match body:
            case {"type": "url_verification", "challenge": str(challenge)}:
                return JSONResponse({"challenge": challenge})
            case {"type": 1}:
                return JSONResponse({"type": 1})
        try:
            found = READERS[chat](body)
        except (LookupError, TypeError, AttributeError):
            raise Refused(400, "the delivery has an unknown shape") from None
        if found is None:
            return JSONResponse({})  # an event that needs no answer, for example of a bot
        key, session, text, to = found
        payload = {"chat": chat, "text": text, "to": to}
        await self.durable.submit("reply", payload, session=session, key=f"{chat}:{key}")
        return JSONResponse({"type": 5} if chat == "discord" else {"ok": True})

    async def reply(self, payload: Json) -> None:
        """Answer one message: the handler of the durable jobs."""
        run = current_job()
        assert run is not None
        assert run.session is not None
        known = run.checkpoint_data
        # Without a crash, a person has queued the job again, and wants it sent.
        if known is not None and run.crashes and payload["chat"] != "discord":
            raise NoRetry("the process died while it sent the reply; it may have arrived")
        text = known or await self._answer(self._engine.lanes, run.session, payload["text"])
        with trio.CancelScope(shield=True):  # a drain does not come between the two
            await run.checkpoint(text)
            await self._send(payload["chat"], payload["to"], text)

    async def _answer(self, lanes: Lanes, session: str, text: str) -> str:
        answer = Answer(session, self._engine.upstream.name, {})
        ask = Ask(answer, [{"role": "user", "content": text}])
        abort = lambda reason: None  # noqa: E731
        await lanes.run(
            self._engine.answer, session, [ask], abort, session=f"hook-{session}", lane=TURNS
        )
        if answer.status != "completed":
            raise ConnectionError("the model did not answer")  # tried again
        return "".join(part["text"] for item in answer.output for part in item.get("content", ()))

    async def _send(self, chat: str, to: Json, text: str) -> None:
        token = os.environ.get(f"{chat.upper()}_TOKEN", "")
        base = os.environ.get(f"{chat.upper()}_API", APIS[chat])
        method, body = "POST", to | {"text": text}
        headers = {}
        if chat == "slack":
            url, headers = f"{base}/chat.postMessage", {"Authorization": f"Bearer {token}"}
        elif chat == "telegram":
            url = f"{base}/bot{token}/sendMessage"
        else:
            method, body = "PATCH", {"content": text}
            url = f"{base}/webhooks/{to['application']}/{to['token']}/messages/@original"
        response = await self._client.request(method, url, json=body, headers=headers)
        if response.is_error:
            raise NoRetry(f"the reply was refused with status {response.status_code}")
