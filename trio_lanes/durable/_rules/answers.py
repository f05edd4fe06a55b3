"""`Answers`: the answers of acts and steps, for tables whose process does all acts.

They are kept in memory: if the process dies, so does every caller that could ask again.
"""

from __future__ import annotations

from typing import Any, Final, final

from .._contract.protocol import REMEMBERED_FOR
from .tables import LastStep

MAX_ANSWERS: Final = 100_000
"""How many answers are kept at most: with more, the oldest are dropped before their time.

Callers that wait for an answer are far fewer, and they stop asking after the store's patience.
"""


@final
class Answers:
    """The answers of acts, in their order, and the last steps of instances.

    An undone transaction takes back the answers that it has put in.

    Attributes:
      steps: the last step of each instance.
    """

    def __init__(self, most: int = MAX_ANSWERS) -> None:
        self._most: Final = most
        self._by_ticket: Final[dict[str, tuple[float, Any]]] = {}  # {ticket: (time, answer)}
        self._next_over = 0.0  # before this time, the time of no answer is over
        self._new: Final[list[str]] = []  # tickets of the present transaction
        self._former: Final[list[tuple[str, LastStep | None]]] = []  # steps before it
        self.steps: Final[dict[str, LastStep]] = {}

    def get(self, ticket: str, now: float) -> tuple[Any] | None:
        """Return the answer of the act with a ticket, in a tuple; None: it is not known."""
        known = self._by_ticket.get(ticket)
        return None if known is None or known[0] + REMEMBERED_FOR <= now else (known[1],)

    def put(self, ticket: str, answer: Any, now: float) -> None:
        """Keep the answer of an act; drop answers whose time is over."""
        self._by_ticket.pop(ticket, None)
        self._by_ticket[ticket] = now, answer
        self._new.append(ticket)
        while now >= self._next_over or len(self._by_ticket) > self._most:
            oldest = next(iter(self._by_ticket))
            time, _ = self._by_ticket[oldest]
            self._next_over = time + REMEMBERED_FOR
            if self._next_over > now and len(self._by_ticket) <= self._most:
                return
            del self._by_ticket[oldest]

    def put_step(self, instance: str, step: LastStep | None) -> None:
        """Keep the last step of an instance; None: the instance is gone."""
        self._former.append((instance, self.steps.get(instance)))
        self._set(instance, step)

    def _set(self, instance: str, step: LastStep | None) -> None:
        if step is None:
            self.steps.pop(instance, None)
        else:
            self.steps[instance] = step

    def commit(self) -> None:
        """Keep the answers and steps of this transaction."""
        self._new.clear()
        self._former.clear()

    def undo(self) -> None:
        """Take back the answers and steps of this transaction: its acts have not happened."""
        for instance, step in reversed(self._former):
            self._set(instance, step)
        self._former.clear()
        for ticket in self._new:
            self._by_ticket.pop(ticket, None)
        self._new.clear()


class RemembersAnswers:
    """The part of `Tables` for answers and steps."""

    _answers: Answers

    def answer(self, ticket: str, now: float) -> tuple[Any] | None:
        return self._answers.get(ticket, now)

    def put_answer(self, ticket: str, answer: Any, now: float) -> None:
        self._answers.put(ticket, answer, now)

    def last_step(self, instance: str) -> LastStep | None:
        return self._answers.steps.get(instance)

    def put_last_step(self, instance: str, step: LastStep | None) -> None:
        self._answers.put_step(instance, step)
