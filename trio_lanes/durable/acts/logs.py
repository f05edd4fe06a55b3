"""Append-only logs."""

from __future__ import annotations

from .._contract.act import Act, Question
from .._contract.protocol import JOBS_LISTED, STEP_BYTES
from .._rules.queues import Queues
from .._rules.tables import ListItem


class WriteLog(Act[int | None], leased=True):
    """Add a record (JSON text) to a log, which needs not exist.

    The answer is its number, from 1 up. None: the incarnation of this instance has ended, and
    nothing was added.
    """

    log: str
    record: str

    def apply(self, queues: Queues) -> int | None:
        if not queues.is_alive(queues.caller):
            return None
        name = f"log {self.log}"
        number = queues.tables.last_item(name) + 1
        queues.tables.append(name, ListItem(number, self.record, queues.caller))
        return number


class DropLog(Act[bool]):
    """Forget a log with all its records; False if there is none."""

    log: str

    def apply(self, queues: Queues) -> bool:
        name = f"log {self.log}"
        is_there = queues.tables.last_item(name) > 0
        if is_there:
            queues.tables.drop_items(name, taken=True)
        return is_there


class LogPage(Question[list[tuple[int, str, str]]], long=True):
    """The first records of a log with numbers above ``after``, in order.

    Each is its number, the incarnation that added it, and its text. They are at most
    ``JOBS_LISTED``, and have at most ``STEP_BYTES`` of text, or are a single record.
    """

    log: str
    after: int

    def answer(self, queues: Queues) -> list[tuple[int, str, str]]:
        page: list[tuple[int, str, str]] = []
        size = 0
        for number, text, author, _ in queues.tables.items(
            f"log {self.log}", self.after, JOBS_LISTED
        ):
            size += len(text.encode())
            if page and size > STEP_BYTES:
                break
            assert author is not None
            page.append((number, author, text))
        return page
