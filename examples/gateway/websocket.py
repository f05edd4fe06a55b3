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
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from trio_lanes import Lanes

from ..openai_api.errors import BadInputError, Refused
from ..openai_api.http import MAX_BODY, Endpoint, json_of
from ..openai_api.wire import Answer, Json
from .responses import Responses

MAX_FRAME: Final = 2 * MAX_BODY  # a connection with a larger one is closed
REQUESTS: Final = 20  # that wait on a connection
IDLE_SECONDS: Final = 900.0  # after which a connection is closed on which nothing runs
GOING_AWAY: Final = 1001  # a code of a closed WebSocket
WAITING: Final = ("function_call", "mcp_approval_request")  # items that wait for the client
FAILED: Final = ("response.failed", "response.cancelled")
UNBEGUN: Final = ("response.created", "response.queued", "response.in_progress", *FAILED)


async def serve_socket(
    responses: Responses, lanes: Lanes, guarded: Callable[[Endpoint], Endpoint], socket: WebSocket
) -> None:
    """Serve a connection; ``guarded`` makes errors of exceptions."""
    await socket.accept()
    requests, waiting = trio.open_memory_channel[Json](REQUESTS)
    connection = _Connection(socket, responses, guarded, requests)
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
    guarded: Callable[[Endpoint], Endpoint]
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
        self.runs.append(await self.responses.begin(body, succeeds))

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
        told = {name: event.get(name) for name in ("previous_response_id", "input")}
        if not isinstance(told["previous_response_id"], str):
            raise BadInputError("previous_response_id must be a string", "previous_response_id")
        items = told["input"] if isinstance(told["input"], list) else [{"role": "user"}]
        of_user = all(isinstance(item, dict) and item.get("role") == "user" for item in items)
        # the response that is steered is in a conversation, if the request names one
        body = self.body | told | {"conversation": None}
        async with self.accepting:
            named = [one for one in self.runs if one.id == told["previous_response_id"]]
            if event.keys() != told.keys() or not of_user:
                await self.fail(told, "invalid_input", "only messages of the user can steer")
            elif not named or named[0].ended.is_set():
                await self.fail(told, "response_not_found", "no such response runs here")
            elif named[0].status == "queued":
                await self.fail(told, "response_not_active", "the response waits")
            elif error := await self.refusal(self.begin, body, True):
                code = "too_many_pending_steers" if error["status"] == 429 else "invalid_input"
                await self.fail(told, code, error["error"]["message"])
            else:
                id = self.runs[-1].id
                self.steers[id] = told | {"id": f"steer_{id}"}
                accepted = {name: self.steers[id][name] for name in ("id", "previous_response_id")}
                await self.say("steer.accepted", steer=accepted)

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

        async def endpoint(request: object) -> Response:
            await act(*args)
            return Response()

        done = await self.guarded(endpoint)(self.socket)  # type: ignore[arg-type]
        if done.status_code < 400:
            return None
        headers = {n: value for n, value in done.headers.items() if not n.startswith("content-")}
        error = json.loads(bytes(done.body))["error"] | {"headers": headers}
        return {"status": done.status_code, "error": error}

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
