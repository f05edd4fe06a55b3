"""Requests for responses, and calls that wait for a request."""

from __future__ import annotations

import attrs

from trio_lanes.agents import ActionGate

from ..openai_api.wire import Answer, Json


@attrs.define(eq=False)
class Ask:
    """One request for a response; the message of an inbox."""

    answer: Answer
    items: list[Json]
    instructions: str = ""
    tools: list[Json] = attrs.field(factory=list)  # of the client, as in chat completions
    servers: list[str] = attrs.field(factory=list)  # whose tools run here
    previous: str | None = None

    @property
    def content(self) -> Json:
        """What the conversation keeps of it."""
        return {"input": self.items, "response": self.answer.id}


@attrs.define(eq=False)
class Pending:
    """Calls that a client has to answer, and the request that answered them."""

    session: str
    root: str  # the first response of the turn
    gate: ActionGate
    ask: Ask | None = None
