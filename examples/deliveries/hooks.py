"""`POST /hooks/slack`, `/telegram`, `/discord`: messages of chats, answered once and in order.

A delivery is checked, accepted as a durable job with the id of its event as key, and acknowledged.
The jobs of a thread run one by one, and each sends its answer.

Sending cannot be undone, and a process may die between sending and remembering it. So the intent to
send is a checkpoint. A later run that finds it repeats a reply that replaces itself (Discord), and
never another: that job fails, and a person decides.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final

import httpx2
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.durable import DurableLanes, NoRetry, current_job

from ..openai_api.http import Refused, json_of, raw_of
from .shapes import APIS, CHECKS, READERS, Json, reply_request

Answer = Callable[[str, str], Awaitable[str]]  # from the session and the text


class Hooks:
    """The endpoint, and the handler of its jobs. Secrets come from the environment.

    Args:
      answer: answers a text in a session; `ConnectionError` if that may be tried again.
    """

    def __init__(self, answer: Answer, client: httpx2.AsyncClient) -> None:
        self.durable: DurableLanes  # set when it is open, before the first request
        self._answer: Final = answer
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
        text = known or await self._answer(run.session, payload["text"])
        with trio.CancelScope(shield=True):  # a drain does not come between the two
            await run.checkpoint(text)
            await self._send(payload["chat"], payload["to"], text)

    async def _send(self, chat: str, to: Json, text: str) -> None:
        token = os.environ.get(f"{chat.upper()}_TOKEN", "")
        base = os.environ.get(f"{chat.upper()}_API", APIS[chat])
        response = await self._client.request(**reply_request(chat, to, text, base, token))
        if response.is_error:
            raise NoRetry(f"the reply was refused with status {response.status_code}")
