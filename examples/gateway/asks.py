"""Requests for responses, and the responses that a turn writes to."""

from __future__ import annotations

from collections.abc import Callable

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


@attrs.define(eq=False)
class Pending:
    """Calls that a client has to answer, and the request that answered them."""

    session: str
    gate: ActionGate
    ask: Ask | None = None


@attrs.define(eq=False)
class Live:
    """The responses that a turn writes to. ``abort`` stops the turn."""

    abort: Callable[[str], object]
    answers: list[Answer] = attrs.field(factory=list)
    ids: list[str] = attrs.field(factory=list)  # of all responses that it has written to

    def join(self, ask: Ask) -> None:
        """Write to the response of this request, too."""

        def stop(reason: str) -> None:
            if self.answers == [ask.answer]:
                self.abort(reason)
            elif ask.answer in self.answers:  # the turn goes on for the others
                self.answers.remove(ask.answer)
                ask.answer.end("cancelled")

        self.answers.append(ask.answer)
        self.ids.append(ask.answer.id)
        ask.answer.stop = stop
        ask.answer.begin()

    def end(self, status: str, why: str = "") -> None:
        """End all responses."""
        for answer in self.answers:
            answer.end(status, why)
        self.answers = []
