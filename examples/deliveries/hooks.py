"""`POST /hooks/slack`, `/telegram`, `/discord`: messages of chats, answered once and in order.

A delivery is checked, accepted as a durable job with the id of its event as key, and acknowledged.
The jobs of a thread run one by one, and each sends its answer.

Sending cannot be undone, and a process may die, or a connection break, before the service has said
that it took the reply. So the intent to send is a checkpoint, for each part of a long reply. What a
service has refused is sent again if that may help. Where nothing is known of a part, the job fails,
and a person decides; only a part that replaces itself (the first in Discord) is sent again.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final

import httpx2
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.durable import DurableLanes, KeyConflictError, NoRetry, current_job
from trio_lanes.durable import DurableRun as Run

from ..chat_agent.keys import hide_in, secret
from ..openai_api.errors import Refused
from ..openai_api.http import json_of, raw_of
from .replies import (
    APIS,
    LARGEST,
    NEVER_SENT,
    NO_TEXT,
    NOT_SENT,
    ArrivalUnknownError,
    LaterError,
    check,
    parts_of,
    replaces_itself,
    request_of,
)
from .shapes import CHECKS, READERS, Json

# what is known of the next part of a reply; FAILED: the job has failed, since nothing is known
READY, BEGUN, FAILED = "ready", "begun", "failed"
Answer = Callable[[str, str], Awaitable[str]]  # from the session and the text


class Hooks:
    """The endpoint, and the handler of its jobs. Secrets come from the environment, once.

    Args:
      answer: answers a text in a session; `ConnectionError` if that may be tried again.

    Raises:
      SecretError: if what a variable has cannot be a secret.
    """

    def __init__(self, answer: Answer, client: httpx2.AsyncClient) -> None:
        self.durable: DurableLanes  # set when it is open, before the first request
        self._answer: Final = answer
        self._client: Final = client
        self._secrets: Final = {chat: secret(f"{chat.upper()}_SECRET") for chat in CHECKS}
        self._tokens: Final = {chat: secret(f"{chat.upper()}_TOKEN") for chat in CHECKS}
        self._bases: Final = {
            chat: hide_in(os.environ.get(f"{chat.upper()}_API", APIS[chat])) for chat in CHECKS
        }

    async def receive(self, request: Request) -> Response:
        """Check a delivery, accept its message, and acknowledge it."""
        raw = await raw_of(request)  # also if it is refused, so that the connection goes on
        chat = request.path_params["chat"]
        if not (key := self._secrets.get(chat)):
            raise Refused(404, "there is no such hook, or its secret is not set")
        if not CHECKS[chat](key, request.headers, raw):
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
        try:
            await self.durable.submit("reply", payload, session=session, key=f"{chat}:{key}")
        except KeyConflictError:  # the first counts; a service repeats what is not acknowledged
            pass
        return JSONResponse({"type": 5} if chat == "discord" else {"ok": True})

    async def reply(self, payload: Json) -> None:
        """Answer one message: the handler of the durable jobs."""
        run = current_job()
        assert run is not None
        assert run.session is not None
        chat, known = payload["chat"], run.checkpoint_data
        if known is None:
            text = NO_TEXT
            if payload["text"] is not None:
                text = await self._answer(run.session, payload["text"])
            known = {"parts": parts_of(text, LARGEST[chat]), "next": 0, "is": READY}
            if not known["parts"]:
                raise NoRetry("the answer is empty")
        # A person has queued a FAILED one again, unless the process died before the job failed.
        unknown = known["is"] == BEGUN or (known["is"] == FAILED and run.crashes)
        if unknown and not replaces_itself(chat, known["next"]):
            await run.checkpoint(known | {"is": FAILED})
            raise NoRetry("the run ended while it sent the reply, which may have arrived")
        while known["next"] < len(known["parts"]):
            with trio.CancelScope(shield=True):  # a drain does not come between
                known = await self._send_next(run, chat, payload["to"], known)

    async def _send_next(self, run: Run, chat: str, to: Json, known: Json) -> Json:
        """Send the next part, and return what is known then; `LaterError` or `NoRetry`."""
        place = known["next"]
        await run.checkpoint(known | {"is": BEGUN})
        try:
            await self._send(chat, to, known["parts"][place], place)
        except (LaterError, NoRetry):  # it was not taken
            await run.checkpoint(known | {"is": READY})
            raise
        except Exception as error:
            # the store keeps the reason: the text of a library may have the token
            why = str(error) if isinstance(error, ArrivalUnknownError) else type(error).__name__
            if replaces_itself(chat, place):
                raise ArrivalUnknownError(why) from None
            await run.checkpoint(known | {"is": FAILED})
            raise NoRetry(f"the reply may have arrived, but: {why}") from None
        known = known | {"next": place + 1, "is": READY}
        if known["next"] < len(known["parts"]):
            await run.checkpoint(known)
        return known

    async def _send(self, chat: str, to: Json, text: str, place: int) -> None:
        base, token = self._bases[chat], self._tokens[chat]
        asked = request_of(chat, to, text, place, base, token)
        try:
            response = await self._client.send(self._client.build_request(**asked))
        except NEVER_SENT as error:
            why = f"the reply was not sent, for the request cannot be made: {type(error).__name__}"
            raise NoRetry(why) from None
        except NOT_SENT as error:
            raise LaterError(f"{chat} cannot be reached: {type(error).__name__}") from None
        check(chat, response)
