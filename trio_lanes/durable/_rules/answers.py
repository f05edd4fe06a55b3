"""`RemembersAnswers`: the answers of acts and steps, for tables whose process does all acts.

They are kept in memory: if the process dies, so does every caller that could ask again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from .._contract.protocol import REMEMBERED_FOR
from .tables import LastStep

MAX_ANSWERS: Final = 100_000
"""How many answers are kept at most: with more, the oldest are dropped before their time.

Callers that wait for an answer are far fewer, and they stop asking after the store's patience.
"""


class RemembersAnswers:
    """The part of `Tables` for answers and steps."""

    _most_answers = MAX_ANSWERS

    def __init__(self) -> None:
        # {ticket: (time, answer)}, in order of these times; first those of this transaction
        self._new_answers: Final[dict[str, tuple[float, Any]]] = {}
        self._old_answers: Final[OrderedDict[str, tuple[float, Any]]] = OrderedDict()
        self._new_steps: Final[dict[str, LastStep | None]] = {}
        self._old_steps: Final[dict[str, LastStep | None]] = {}

    def answer(self, ticket: str, now: float) -> tuple[Any] | None:
        known = self._new_answers.get(ticket) or self._old_answers.get(ticket)
        return None if known is None or known[0] + REMEMBERED_FOR <= now else (known[1],)

    def put_answer(self, ticket: str, answer: Any, now: float) -> None:
        self._new_answers[ticket] = now, answer

    def last_step(self, instance: str) -> LastStep | None:
        steps = self._new_steps if instance in self._new_steps else self._old_steps
        return steps.get(instance)

    def put_last_step(self, instance: str, step: LastStep | None) -> None:
        self._new_steps[instance] = step

    def commit_answers(self) -> None:
        """Keep the answers and steps of this transaction; drop answers whose time is over."""
        answers = self._old_answers
        for ticket, (now, answer) in self._new_answers.items():
            answers[ticket] = now, answer
            answers.move_to_end(ticket)  # the home of a session has the same ticket each time
            oldest, _ = next(iter(answers.values()))
            while oldest + REMEMBERED_FOR <= now or len(answers) > self._most_answers:
                answers.popitem(last=False)
                oldest, _ = next(iter(answers.values()))
        for instance, step in self._new_steps.items():
            self._old_steps[instance] = step
            if step is None:
                del self._old_steps[instance]
        self.undo_answers()

    def undo_answers(self) -> None:
        """Forget the answers and steps of this transaction: they are kept now, or undone."""
        self._new_answers.clear()
        self._new_steps.clear()
