"""Requests for responses, calls that wait for a request, and how a turn reaches the outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
from attrs.converters import optional

from trio_lanes import current_job
from trio_lanes.agents import ActionGate, ConversationTurn, Turn, WhenBusy

from ..chat_agent.model import Stopped, ToolCall, Usage
from ..chat_agent.toolbox import Servers
from ..openai_api.wire import Answer, Json

TURNS: Final = "main"  # the lane of turns
# items that a model has made, and that answer them
MADE: Final = ("function_call", "reasoning", "mcp_call", "mcp_list_tools", "mcp_approval_request")
ANSWERS: Final = ("function_call_output", "mcp_approval_response")


@attrs.define(eq=False)
class Ask:
    """One request for a response; the message of an inbox."""

    answer: Answer
    items: list[Json]
    instructions: str = ""
    tools: list[Json] = attrs.field(factory=list)  # of the client, as in chat completions
    servers: Servers = attrs.field(factory=dict)  # whose tools run here
    previous: str | None = None
    # what it does if its session is busy
    mode: WhenBusy | None = attrs.field(default=None, converter=optional(WhenBusy))
    user: str | None = None
    key: str = ""  # of a request that brings outputs to a run
    settings: Json = attrs.field(factory=dict)  # for the model, as in chat completions
    approvals: Json = attrs.field(factory=dict)  # {label of a server: its `require_approval`}
    max_tool_calls: int | None = None
    truncates: bool = False  # whether the oldest exchanges may be dropped
    is_kept: bool = True  # in its conversation
    alone: bool = False  # beside the other requests of its conversation
    messages: list[Json] = attrs.field(factory=list)  # of a completion, which has no items
    resumes: bool = False  # whether its outputs are for a turn that waited when it was checked

    @property
    def content(self) -> Json:
        """What the conversation keeps of it."""
        return {"input": self.items, "response": self.answer.id, "previous": self.previous}

    @property
    def group(self) -> str | None:
        """The group of the message: no other turn keeps what one says that is not kept."""
        return self.user if self.is_kept else self.answer.id

    @property
    def said(self) -> list[Json]:
        """The items that it says beside outputs: not what it repeats of the turn so far."""
        made = [place for place, item in enumerate(self.items, 1)
                if item.get("role") == "assistant" or item.get("type") in MADE]  # fmt: skip
        new = self.items[max(made, default=0) :]
        return [item for item in new if item.get("type") not in ANSWERS]


def joined(asks: Sequence[Ask]) -> Ask:
    """Return the newest request, with the tools of all, and the newest instructions."""
    tools = {tool["function"]["name"]: tool for ask in asks for tool in ask.tools}
    return attrs.evolve(
        asks[-1],
        tools=[*tools.values()],
        servers={label: allowed for ask in asks for label, allowed in ask.servers.items()},
        approvals={label: approval for ask in asks for label, approval in ask.approvals.items()},
        instructions=next((a.instructions for a in reversed(asks) if a.instructions), ""),
        is_kept=any(ask.is_kept for ask in asks),
    )


@attrs.define(eq=False)
class Pending:
    """Calls that a client has to answer, and the request that answered them."""

    session: str
    gate: ActionGate
    responses: list[str]  # that the turn has written to
    stop: Callable[[str], Awaitable[object]]  # stops the turn, and returns when that is recorded
    ask: Ask | None = None


@attrs.define(eq=False)
class Live:
    """Responses that a turn writes to. ``abort`` stops the turn."""

    abort: Callable[[str], object]
    answers: list[Answer] = attrs.field(factory=list)
    ids: list[str] = attrs.field(factory=list)  # of all responses that it has written to
    stored: list[str] = attrs.field(factory=list)  # those that clients may find later

    def join(self, answer: Answer, **more: str) -> None:
        """Write to this response, too; in place of the others if it succeeds them."""

        def stop(reason: str) -> None:
            if self.answers == [answer]:
                self.abort(reason)
            elif answer in self.answers:  # the turn goes on for the others
                self.answers.remove(answer)
                answer.end("cancelled")

        if answer.succeeds:
            self.end("incomplete", "steered")
        self.answers.append(answer)
        self.ids.append(answer.id)
        self.stored += [answer.id] if answer.is_stored else []
        answer.stop = stop
        answer.begin(**more)

    def add(self, event: str | Usage | Stopped) -> None:
        """Add what the model has said to all responses."""
        for answer in self.answers:
            if isinstance(event, str):
                answer.text(event)
            elif isinstance(event, Stopped):
                answer.stopped_at = event.at
            else:
                answer.usage += event

    def end(self, status: str, why: str | Json = "") -> None:
        """End all responses."""
        for answer in self.answers:
            answer.end(status, why)
        self.answers = []


class Elsewhere:
    """The turns of other processes; there are none."""

    async def open_wait(self, name: str) -> Pending | None:
        """Return what a turn waits for: the turn with this call, or in this `session:NAME`."""
        return None


class Reach:
    """How a running turn reaches what is outside of it.

    Args:
      abort: stops the turn.
      turn: the turn of an inbox of this process, if it is one.

    Attributes:
      begins_again: whether what the store says ends no response: the turn is attempted anew.
    """

    begins_again = False

    def __init__(self, abort: Callable[[str], object] = bool, turn: Turn | None = None) -> None:
        self.abort: Final = abort
        self._inbox_turn: Final = turn

    async def take(self) -> list[Ask]:
        """Return the requests that came meanwhile, and that the turn answers, too."""
        return self._inbox_turn.take() if self._inbox_turn else []

    def rolled_back(self) -> bool:
        """Whether the turn leaves its conversation."""
        return self._inbox_turn is not None and self._inbox_turn.rollback_called

    async def restore(self, exchange: ConversationTurn, live: Live) -> list[ToolCall]:
        """Write what a process has left that died while its client had calls; return the calls."""
        return []

    @asynccontextmanager
    async def waiting(self, pending: Pending) -> AsyncIterator[None]:
        """Lend the slot of the turn, from before its client gets the calls."""
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            yield
