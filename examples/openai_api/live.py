"""The responses that one turn writes to."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ..chat_agent.model import Usage
from .wire import Answer, Json


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

    def add(self, event: str | Usage) -> None:
        """Add text, or tokens, to all responses."""
        for answer in self.answers:
            if isinstance(event, str):
                answer.text(event)
            else:
                answer.usage += event

    def end(self, status: str, why: str | Json = "") -> None:
        """End all responses."""
        for answer in self.answers:
            answer.end(status, why)
        self.answers = []
