"""Requests for responses, and calls that wait for a request."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from trio_lanes.agents import ActionGate

from ..chat_agent.toolbox import Servers
from ..openai_api.wire import Answer, Json


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

    @property
    def content(self) -> Json:
        """What the conversation keeps of it."""
        return {"input": self.items, "response": self.answer.id}


def joined(asks: Sequence[Ask]) -> Ask:
    """Return the newest request, with the tools of all, and the newest instructions."""
    tools = {tool["function"]["name"]: tool for ask in asks for tool in ask.tools}
    return attrs.evolve(
        asks[-1],
        tools=[*tools.values()],
        servers={label: allowed for ask in asks for label, allowed in ask.servers.items()},
        approvals={label: approval for ask in asks for label, approval in ask.approvals.items()},
        instructions=next((a.instructions for a in reversed(asks) if a.instructions), ""),
    )


@attrs.define(eq=False)
class Pending:
    """Calls that a client has to answer, and the request that answered them."""

    session: str
    root: str  # the first response of the turn
    gate: ActionGate
    ask: Ask | None = None
