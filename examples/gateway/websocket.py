"""The WebSocket of `/v1/responses`: requests, one by one, and messages that steer them.

A message that steers is accepted at once. The turn takes it when the model has said what it says:
then the response that is steered ends, and one that succeeds it gets the rest.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

import attrs
import trio
from starlette.websockets import WebSocket, WebSocketDisconnect

from trio_lanes import Lanes

from ..openai_api.errors import BadInputError, Refused
from ..openai_api.http import MAX_BODY, json_of
from ..openai_api.once import Key
from ..openai_api.wire import Answer, Json
from .responses import Responses

MAX_FRAME: Final = 2 * MAX_BODY  # a connection with a larger one is closed
REQUESTS: Final = 20  # that wait on a connection
IDLE_SECONDS: Final = 900.0  # after which a connection is closed on which nothing runs
GOING_AWAY: Final = 1001  # a code of a closed WebSocket
WAITING: Final = ("function_call", "mcp_approval_request")  # items that wait for the client
FAILED: Final = ("response.failed", "response.cancelled")
UNBEGUN: Final = ("response.created", "response.queued", "response.in_progress", *FAILED)
RefusalOf = Callable[[Exception], Refused]


async def serve_socket(
    responses: Responses, lanes: Lanes, refusal_of: RefusalOf, socket: WebSocket
) -> None:
    """Serve a connection; ``refusal_of`` makes errors of exceptions."""
    await socket.accept()
    requests, waiting = trio.open_memory_channel[Json](REQUESTS)
    connection = _Connection(socket, responses, refusal_of, requests)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.respond, waiting)
        nursery.start_soon(connection.listen, nursery.cancel_scope)
        await lanes.wait_closing()
        while connection.runs:
            await connection.none_runs.park()
        await connection.close()
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class _Connection:
    socket: WebSocket
    responses: Responses
    refusal_of: RefusalOf
    requests: trio.MemorySendChannel[Json]
    body: Json = attrs.field(factory=dict)  # of the request that runs
    runs: deque[Answer] = attrs.field(factory=deque)  # its response, and those that will succeed
    steers: dict[str, Json] = attrs.field(factory=dict)  # {response that will succeed: its message}
    accepting: trio.Lock = attrs.field(factory=trio.Lock)  # held while `runs` is changed
    none_runs: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    sending: trio.Lock = attrs.field(factory=trio.Lock)
    count: int = -1  # the number of the last event that is of no response

    async def listen(self, scope: trio.CancelScope) -> None:
        """Do what the client sends, until it leaves; then stop what runs for it alone."""
        while True:
            frame: Any = None
            with trio.move_on_after(IDLE_SECONDS):
                frame = await self.socket.receive()
            if frame is not None and frame["type"] == "websocket.receive":
                raw = frame.get("bytes") or (frame.get("text") or "").encode()
                await self.unless_refused(self.obey, raw)
            elif frame is not None or not self.runs:
                break
        await self.close()
        if not self.body.get("background"):
            for answer in [*self.runs]:
                answer.stop("the client hung up")
        scope.cancel()

    async def obey(self, raw: bytes) -> None:
        """Do what a frame says."""
        if len(raw) > MAX_BODY:
            raise Refused(413, f"a frame has at most {MAX_BODY:,} bytes")
        event = json_of(raw)
        match event.pop("type", None):
            case "response.steer":
                await self.steer(event)
            case "response.create":
                for name, only in {"generate": True, "stream": True, "stream_id": None}.items():
                    if event.pop(name, None) not in (only, None):
                        raise BadInputError(f"{name} cannot be done over a WebSocket", name)
                try:
                    self.requests.send_nowait(event | {"stream": True})
                except trio.WouldBlock:
                    raise Refused(429, f"at most {REQUESTS} requests wait") from None
            case _:
                raise BadInputError("type must be response.create or response.steer", "type")

    async def respond(self, requests: trio.MemoryReceiveChannel[Json]) -> None:
        """Answer the requests, one by one."""
        async for self.body in requests:
            await self.unless_refused(self.begin, self.body)
            while self.runs:
                answer = self.runs[0]
                await self.tell(answer)
                async with self.accepting:
                    self.runs.popleft()
                    waits = any(item["type"] in WAITING for item in answer.output)
                    if waits or answer.status in ("failed", "cancelled"):
                        for steer in self.runs:
                            steer.stop("the response that it steers goes on no more")
            self.none_runs.unpark_all()

    async def begin(self, body: Json, succeeds: bool = False) -> None:
        """Accept a request, or a message that steers."""
        self.runs.append(await self.responses.begin(body, Key(), succeeds))

    async def tell(self, answer: Answer) -> None:
        """Send the events of a response; of one that succeeds, when the model has its message."""
        held: list[Json] = []
        async with aclosing(answer.feed.read(-1)) as events:
            async for _, event in events:
                held.append(event)
                if event["type"] not in UNBEGUN or "became" in event:
                    self.steers.pop(answer.id, None)
                while held and answer.id not in self.steers:
                    await self.send(held.pop(0))
        if steer := self.steers.pop(answer.id, None):
            why = "the response has ended, or waits for its client"
            await self.fail(steer, "successor_creation_failed", why)

    async def steer(self, event: Json) -> None:
        """Accept a message that steers a response which runs."""
        message = {name: event.get(name) for name in ("previous_response_id", "input")}
        previous, items = message["previous_response_id"], message["input"]
        if not isinstance(previous, str):
            raise BadInputError("previous_response_id must be a string", "previous_response_id")
        of_user = not isinstance(items, list) or all(
            isinstance(item, dict) and item.get("role") == "user" for item in items
        )
        # the response that is steered is in a conversation, if the request names one
        body = self.body | message | {"conversation": None}
        async with self.accepting:
            named = next((one for one in self.runs if one.id == previous), None)
            if event.keys() != message.keys() or not of_user:
                await self.fail(message, "invalid_input", "only messages of the user can steer")
            elif named is None or named.ended.is_set():
                await self.fail(message, "response_not_found", "no such response runs here")
            elif named.status == "queued":
                await self.fail(message, "response_not_active", "the response waits")
            elif error := await self.refusal(self.begin, body, True):
                code = "too_many_pending_steers" if error["status"] == 429 else "invalid_input"
                await self.fail(message, code, error["error"]["message"])
            else:
                id = self.runs[-1].id
                steer = {"id": f"steer_{id}", "previous_response_id": previous}
                self.steers[id] = message | steer
                await self.say("steer.accepted", steer=steer)

    async def fail(self, steer: Json, code: str, why: str) -> None:
        """Give a message that steers back to the client."""
        error = {"type": "invalid_request_error", "code": code, "message": why}
        await self.say("steer.failed", error=error, steer=steer)

    async def unless_refused(self, act: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Act; send the error if it is refused."""
        if error := await self.refusal(act, *args):
            await self.send({"type": "error"} | error)

    async def refusal(self, act: Callable[..., Awaitable[None]], *args: Any) -> Json | None:
        """Act; return the error if it is refused."""
        try:
            await act(*args)
        except Exception as fault:
            no = self.refusal_of(fault)
            return {"status": no.status, "error": no.problem | {"headers": no.headers}}
        return None

    async def say(self, kind: str, **fields: Any) -> None:
        """Send an event that is of no response."""
        self.count += 1
        await self.send({"type": f"response.{kind}", "sequence_number": self.count, **fields})

    async def send(self, event: Json) -> None:
        """Send an event; after the client has left, wait for the cancellation."""
        async with self.sending:
            try:
                await self.socket.send_text(json.dumps(event, separators=(",", ":")))
            except (WebSocketDisconnect, RuntimeError):
                await trio.sleep_forever()

    async def close(self) -> None:
        """Close the connection, if it is still open."""
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.socket.close(GOING_AWAY)
