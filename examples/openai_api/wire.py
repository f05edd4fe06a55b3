"""A response as clients see it: its object, its numbered events, and its one terminal state.

Output is a list of items. Text grows one message item; a call is an item of its own. `end` is the
only way into a terminal state, and only its first call counts.

The events are all that there is to know about a response: `learn` makes the response again from
its events, in another process or after a crash.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final

import trio

from trio_lanes.agents import Feed

from ..chat_agent.model import Refusal, ToolCall, Usage
from .errors import problem
from .fields import echoed

logger: Final = logging.getLogger(__name__)
Json = dict[str, Any]
TERMINAL: Final = ("completed", "failed", "cancelled", "incomplete")


def new_id(prefix: str) -> str:
    """Return a new id that clients cannot guess."""
    return f"{prefix}_{secrets.token_hex(12)}"


class Answer:
    """One response. All methods are synchronous, and have no effect after `end`.

    Attributes:
      record: keeps an event; called before any reader of the feed gets it.
      is_closing: whether the process ends. Then a cancelled response that is recorded does not end:
        it is suspended, and the next process goes on with it.
      stop: stops what the answer waits for.
    """

    def __init__(self, shown: Json) -> None:
        self.id: Final[str] = shown["id"]
        self.session: Final = session_of(self.id)
        self.input: list[Json] = []  # the items of its request
        self.output: Final[list[Json]] = []
        self.feed: Final[Feed[Json]] = Feed(math.inf)
        self.ended: Final = trio.Event()
        self.stop: Callable[[str], object] = lambda reason: None
        self.usage = Usage(0)  # until the end
        self.stopped_at = ""  # one of the texts of `stop`, which only completions have
        self.record: Callable[[Json], None] | None = None
        self.is_closing: Callable[[], bool] = bool
        self.position: int | None = None  # messages before its own when that was accepted here
        self.succeeds = False  # whether the others of a turn end when the turn takes this one
        self.taken_back = -1  # the number of the last event that `start_over` has made void
        self._pieces: list[str] = []  # of the message that grows
        self._kind = "output_text"  # of its part
        self._shown = shown  # the response of the last event that has one

    @classmethod
    def begun(cls, session: str, model: str, body: Json, id: str = "") -> Answer:
        """Return a new response to a request with this body."""
        shown = {
            "id": id or f"resp_{session}.{secrets.token_hex(12)}", "object": "response",
            "created_at": int(time.time()), "model": model, **echoed(body),
            "conversation": {"id": session} if body.get("conversation") else None,
            "status": "queued", "output": [], "usage": None, "error": None,
            "completed_at": None, "incomplete_details": None,
        }  # fmt: skip
        answer = cls(shown)
        answer._publish("response.created", response=shown)
        return answer

    @classmethod
    def again(cls, events: Iterable[Json]) -> Answer:
        """Return the response with these events; the first is `response.created`."""
        first, *more = events
        answer = cls(first["response"])
        for event in (first, *more):
            answer.learn(event)
        return answer

    def object(self) -> Json:
        """Return the response as it is now."""
        return self._shown | {"output": [*self.output]}

    @property
    def status(self) -> str:
        """The state of the response."""
        return str(self._shown["status"])

    @property
    def error(self) -> Any:
        """The object of the error, if it has failed."""
        return self._shown["error"]

    @property
    def is_stored(self) -> bool:
        """Whether clients may find it later."""
        return self._shown.get("store") is not False

    def begin(self, status: str = "in_progress", **more: Any) -> None:
        """The turn has started; or the message waits. ``more`` is for clients."""
        if self.status == "queued":
            shown = self.object() | {"status": status}
            self._publish(f"response.{status}", response=shown, **more)

    @property
    def _growing(self) -> Json | None:
        """The message that grows, if there is one."""
        last = self.output[-1] if self.output else {"type": ""}
        return last if last["type"] == "message" and last["status"] == "in_progress" else None

    def text(self, delta: str) -> None:
        """Add text to the growing message; begin a message if none grows. So of a `Refusal`."""
        kind = "refusal" if isinstance(delta, Refusal) else "output_text"
        if kind != self._kind:
            self.end_text()
        if self._growing is None:
            message = {"id": new_id("msg"), "type": "message", "role": "assistant",
                       "status": "in_progress", "content": []}  # fmt: skip
            self._publish("response.output_item.added", item=message, at=message)
            part = text_part("", kind)
            self._publish("response.content_part.added", part=part, at=message)
        more: Json = {"logprobs": []} if kind == "output_text" else {}
        self._publish(f"response.{kind}.delta", delta=str(delta), **more, at=self._growing)

    def end_text(self, status: str = "completed") -> None:
        """End the growing message, if there is one."""
        if (message := self._growing) is None:
            return
        part = text_part("".join(self._pieces), self._kind)
        done = {name: part[name] for name in ("text", "refusal", "logprobs") if name in part}
        self._publish(f"response.{self._kind}.done", **done, at=message)
        self._publish("response.content_part.done", part=part, at=message)
        self._item_done(message | {"status": status, "content": [part]})

    def call(self, call: ToolCall) -> None:
        """Add a call that the client answers."""
        item = {"id": new_id("fc"), "type": "function_call", "status": "in_progress",
                "call_id": call.id, "name": call.name, "arguments": ""}  # fmt: skip
        self.begin_call(item)
        self.end_call(item, call, "response.function_call_arguments", status="completed")

    def ask(self, id: str, call: ToolCall, server: str | None) -> None:
        """Add the request to approve a call."""
        item = {"id": id, "type": "mcp_approval_request", "server_label": server,
                "name": call.name, "arguments": call.arguments or "{}"}  # fmt: skip
        self.begin_call(item)
        self._item_done(item)

    def begin_call(self, item: Json) -> None:
        """Add the item of a call that runs; several may run at once."""
        self.end_text()
        self._publish("response.output_item.added", item=item, at=item)

    def end_call(self, item: Json, call: ToolCall, kind: str, **fields: Any) -> None:
        """End the item of a call, with its arguments and these fields."""
        arguments = call.arguments or "{}"
        self._publish(f"{kind}.delta", delta=arguments, at=item)
        self._publish(f"{kind}.done", arguments=arguments, name=call.name, at=item)
        self._item_done(item | {"arguments": arguments, **fields})

    def start_over(self) -> None:
        """Take back the items of a run whose process has died: they are incomplete, and empty."""
        for item in [*self.output]:
            empty: Json = {"content": []} if item["type"] == "message" else {}
            self._item_done(item | {"status": "incomplete"} | empty)

    def learn(self, event: Json) -> None:
        """Take in the next event, of this process or of another."""
        match event:
            case {"type": "response.output_item.added", "item": item}:
                self.output.append(item)
            case {"type": "response.output_item.done", "item": item, "output_index": place}:
                self.output[place] = item
                self._pieces = []
                if item.get("status") == "incomplete" and not item.get("content"):
                    self.taken_back = event["sequence_number"]
            case {"type": "response.content_part.added", "part": {"type": kind}}:
                self._kind = kind
            case {"type": "response.output_text.delta" | "response.refusal.delta", "delta": delta}:
                self._pieces.append(delta)
            case {"response": response}:
                self._shown = response
                if self.status in TERMINAL:
                    self.output[:] = response["output"]
        self.feed.publish(event)
        if self.status in TERMINAL:
            self._over()

    def suspend(self) -> None:
        """End the feed without a terminal state; another process goes on."""
        self._over()

    @property
    def is_suspended(self) -> bool:
        """Whether another process goes on."""
        return self.ended.is_set() and self.status not in TERMINAL

    def cancel(self, reason: str) -> None:
        """The client does not want the response any more."""
        self.is_closing = bool
        self.stop(reason)

    def end(self, status: str, why: str | Json = "") -> None:
        """Enter a terminal state; only the first call counts. ``why`` is an error, or its text."""
        if status == "cancelled" and self.record is not None and self.is_closing():
            self.suspend()
        self.end_text("completed" if status == "completed" else "incomplete")
        output = [  # a call of a turn that was stopped is incomplete
            item | {"status": "incomplete"} if item.get("status") == "in_progress" else item
            for item in self.output
        ]
        ended: Json = {"status": status, "output": output, "usage": usage_of(self.usage)}
        if self.stopped_at:
            ended["stop_reason"] = self.stopped_at
        if status == "failed":
            ended["error"] = problem(why) if isinstance(why, str) else why
        elif status == "incomplete":
            ended["incomplete_details"] = {"reason": why}
        elif status == "completed":
            ended["completed_at"] = int(time.time())
        self._publish(f"response.{status}", response=self._shown | ended)

    def _over(self) -> None:
        self.feed.close()
        self.stop = lambda reason: None  # what it would stop is over, and need not be kept
        self.ended.set()

    def lines(self, after: int = -1) -> AsyncIterator[str]:
        """Return the events after that number, as server-sent events.

        Raises:
          ValueError, FeedGapError: as `Feed.read`.
        """
        events = self.feed.read(after)

        async def lines() -> AsyncIterator[str]:
            async with aclosing(events):
                async for _, event in events:
                    yield sse(event)

        return lines()

    def _item_done(self, item: Json) -> None:
        self._publish("response.output_item.done", item=item, at=item)

    def _publish(self, kind: str, at: Json | None = None, **fields: Any) -> None:
        """Publish an event, unless all is over; ``at`` is the item that it is about."""
        if self.ended.is_set():
            return
        if at is not None:
            ids = [item["id"] for item in self.output]
            fields["output_index"] = ids.index(at["id"]) if at["id"] in ids else len(ids)
            if "item" not in fields:
                fields["item_id"] = at["id"]
                if at["type"] == "message":
                    fields["content_index"] = 0
        event = {"type": kind, **fields, "sequence_number": self.feed.last + 1}
        if self.record is not None:
            try:
                self.record(event)
            except OSError as error:  # for example a full disk
                logger.error("%s will not outlive this process: %s", self.id, error)
                self.record = None
        self.learn(event)


def session_of(id: str) -> str:
    """Return the session in the id of a response; "" if there is none."""
    return id.removeprefix("resp_").rpartition(".")[0]


def stem_of(id: str) -> str:
    """Return the last part of the id of a response, which is of it alone."""
    return id.rpartition(".")[2]


def sse(event: Json) -> str:
    """Return an event of a stream of server-sent events."""
    return f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n"


def usage_of(usage: Usage) -> Json:
    """Return the usage of a response."""
    prompt = usage.prompt or usage.tokens - usage.completion  # an endpoint may say the sum alone
    return {
        "input_tokens": prompt, "output_tokens": usage.completion, "total_tokens": usage.tokens,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
    }  # fmt: skip


def text_part(text: str, kind: str = "output_text") -> Json:
    """Return a part of a message of a response."""
    if kind == "refusal":
        return {"type": kind, "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
