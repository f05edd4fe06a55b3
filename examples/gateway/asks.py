"""Requests for responses, calls that wait for a request, and how a turn reaches the outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs

from trio_lanes import current_job
from trio_lanes.agents import ActionGate, ConversationTurn, Turn

from ..chat_agent.model import ToolCall
from ..chat_agent.toolbox import Servers
from ..openai_api.live import Live
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
    stop: Callable[[str], object]  # stops the turn
    ask: Ask | None = None


class Elsewhere:
    """The turns of other processes; there are none."""

    def pending(self, call: str) -> Pending | None:
        """Return the calls with this one that wait for outputs."""
        return None

    async def pending_in(self, session: str) -> Pending | None:
        """Return the calls of a session that wait for outputs."""
        return None


class Reach:
    """How a running turn reaches what is outside of it.

    Args:
      abort: stops the turn.
      turn: the turn of an inbox of this process, if it is one.
    """

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
